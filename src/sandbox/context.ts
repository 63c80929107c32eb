// What every part of the core works with: the dependencies, the index, the leases, the directories and the journals.
import type { Backend } from "../contracts/backend.ts";
import type { Release } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { ResourceRow } from "../state/change.ts";
import { Catalogue } from "./catalogue.ts";
import type { CoreDependencies, LeaseKind } from "./dependencies.ts";
import { LeaseBook } from "./leases.ts";
import { Ledger } from "./ledger.ts";
import type { VmRecord } from "./operations.ts";
import { Places } from "./places.ts";
import { PoolBook } from "./pools/book.ts";
import { ExposedPorts } from "./ports/exposures.ts";
import type { SandboxRecord } from "./record.ts";
import type { Sandbox } from "./sandbox.ts";
import { DRY_RUN_SNAPSHOT, releaseSnapshot } from "./snapshots/revert.ts";
import { toVmRecord } from "./vm-record.ts";

function releaseTable(sources: readonly { readonly releases: Readonly<Record<string, Release>> }[]) {
  const table = new Map<string, Release>();
  for (const { releases } of sources) {
    for (const [kind, release] of Object.entries(releases)) {
      if (table.has(kind)) throw new Error(`two plugins release resources of kind ${kind}`);
      table.set(kind, release);
    }
  }
  return table;
}

export class Context {
  readonly catalogue: Catalogue;
  readonly leases: LeaseBook;
  readonly places: Places;
  readonly exposed = new ExposedPorts();
  readonly pools = new PoolBook();
  readonly releases: ReadonlyMap<string, Release>;
  /** Set at shutdown: nothing new is accepted. */
  closing = false;

  constructor(readonly dependencies: CoreDependencies) {
    const { settings, backends, storage, dataplanes, network, store, crashPoint } = dependencies;
    this.catalogue = new Catalogue(settings);
    this.places = new Places(settings.instancesDir, settings.runDir, dependencies.removeTree);
    const snapshots = { releases: { [DRY_RUN_SNAPSHOT]: releaseSnapshot(this) } };
    const own = [this.places, this.exposed, snapshots];
    this.releases = releaseTable([
      ...own,
      storage,
      ...backends.values(),
      ...dataplanes.values(),
      ...(network?.plumbing == null ? [] : [network.plumbing]),
    ]);
    this.leases = new LeaseBook({
      store,
      ranges: settings.leaseRanges,
      isClean: (kind, value) => this.#leaseIsClean(kind, value),
      claim: async (kind) => await dependencies.claimLeases?.(kind),
      crashPoint,
    });
  }

  ledger(owner: string, rows: readonly ResourceRow[] = []): Ledger {
    const { store, clock, crashPoint, log } = this.dependencies;
    return new Ledger({ store, releases: this.releases, clock, crashPoint, log }, owner, rows);
  }

  /** Rejects with `CAPABILITY_MISSING` when the backend is not loaded on this host. */
  backend(id: string): Backend {
    const backend = this.dependencies.backends.get(id);
    if (backend !== undefined) return backend;
    throw new AgentError("CAPABILITY_MISSING", `the backend ${JSON.stringify(id)} is not available on this host`, {
      details: { capability: `backend:${id}` },
    });
  }

  assertOpen(): void {
    if (this.closing) throw new AgentError("SHUTTING_DOWN");
  }

  /** `record` differs from the sandbox's own while a transition is being written. */
  render(sandbox: Sandbox, record: SandboxRecord = sandbox.record): VmRecord {
    const workspace = this.places.instanceDir(record.id);
    return toVmRecord(record, {
      runningCommands: sandbox.runningCommands,
      environmentNames: Object.keys(sandbox.environment),
      storageBytes: sandbox.storageBytes,
      lastExit: sandbox.lastExit,
      workspace,
      consoleLog: this.dependencies.backends.get(record.backend)?.consoleLog?.(workspace) ?? null,
      folderServers: sandbox.live?.instance.folderServers ?? [],
    });
  }

  /** What any backend started may still be using it. */
  async #leaseIsClean(kind: LeaseKind, value: number): Promise<boolean> {
    try {
      const { backends, network } = this.dependencies;
      if (kind === "address") return (await network?.plumbing?.addressIsFree(value)) ?? false;
      for (const backend of backends.values()) {
        const isClean = kind === "cid" ? backend.cidIsFree : backend.uidIsClean;
        if (isClean !== undefined && !(await isClean(value))) return false;
      }
      return true;
    } catch (error) {
      this.dependencies.log.warn({ kind, value, error: String(error) }, "could not tell whether a lease is clean");
      return false;
    }
  }
}
