// The sandbox core put together: the operations for transports, reconciling before they listen, the reaper, and letting
// go at shutdown.
import type { Caller, Operations } from "./operations.ts";
import { changesSinceBaseline, takeBaseline } from "./change-set/baseline.ts";
import { dryRun } from "./change-set/dry-run.ts";
import { stateNow } from "./catalogue.ts";
import { consoleOperations } from "./console/console.ts";
import type { ConsoleOperations } from "./console/operations.ts";
import type { Dependant } from "../templates/dependants.ts";
import { Context } from "./context.ts";
import { create } from "./create.ts";
import { dependantsOf } from "./dependants.ts";
import type { CoreDependencies } from "./dependencies.ts";
import { executionOperations } from "./executions/executions.ts";
import type { ExecutionOperations } from "./executions/operations.ts";
import { fileOperations } from "./files/files.ts";
import type { FileSystemOperations } from "./files/operations.ts";
import { ping, readFile, refreshUsage, runProcess, writeFile } from "./guest-access.ts";
import type { LeaseUse } from "./leases.ts";
import { type Status, STATUSES, statusOf } from "./lifecycle.ts";
import type { SandboxDirectory } from "../network/sandboxes.ts";
import { watchOvershoot } from "./overshoot.ts";
import { awakeSandbox, onGuest } from "./on-guest.ts";
import { sandboxDirectory } from "./network.ts";
import { NetworkKeeper } from "./network-keeper.ts";
import { PoolKeeper } from "./pools/keeper.ts";
import type { PoolOperations } from "./pools/operations.ts";
import { poolOperations } from "./pools/pools.ts";
import type { PortOperations } from "./ports/operations.ts";
import { portOperations } from "./ports/ports.ts";
import { pause, restart, resume, start, stop } from "./power.ts";
import { Reaper } from "./reaper.ts";
import { type ReconcileReport, reconcile } from "./reconcile.ts";
import { remove } from "./remove.ts";
import { Rounds } from "./rounds.ts";
import type { ResourceOperations } from "./resources/operations.ts";
import { resourceOperations } from "./resources/resources.ts";
import { abortDryRuns, dismissReaders, letGo } from "./shutdown.ts";
import type { Sandbox } from "./sandbox.ts";
import type { SnapshotOperations } from "./snapshots/operations.ts";
import { snapshotOperations } from "./snapshots/snapshots.ts";
import { update } from "./update.ts";

export interface SandboxCore {
  readonly operations: Operations;
  readonly executions: ExecutionOperations;
  readonly files: FileSystemOperations;
  readonly ports: PortOperations;
  readonly snapshots: SnapshotOperations;
  readonly consoles: ConsoleOperations;
  readonly pools: PoolOperations;
  readonly resources: ResourceOperations;
  /** Reads the state and adopts, rolls back or rolls forward everything in it. Once, before anything listens. */
  reconcile(): Promise<ReconcileReport>;
  /** Begins the periodic work and the watch over workspaces. Once, after reconciling. */
  startKeepers(): void;
  /** Sandboxes by `status` word and by backend id, for metrics; every status is present. */
  census(): { readonly byStatus: ReadonlyMap<Status, number>; readonly byBackend: ReadonlyMap<string, number> };
  /** Every sandbox, as the network fabric knows it. */
  readonly directory: SandboxDirectory;
  /** Blocks of addresses: how many there are, and how many nobody could get now. */
  addressUse(): LeaseUse;
  /** What sandboxes and pools were made from. */
  dependants(): readonly Dependant[];
  /** Refuses what is new and ends what nobody could wait for (dry-runs), so that the requests in progress can end. */
  close(): void;
  /** `close`, then waits for what runs and lets go of every instance without ending it, within `budgetMs`. */
  shutdown(budgetMs: number): Promise<void>;
}

/** Wires the core. Throws `CONFIG_INVALID` when the directories of the settings cannot work. */
export function createCore(dependencies: CoreDependencies): SandboxCore {
  const context = new Context(dependencies);
  const pools = new PoolKeeper(context);
  const [reaper, networks] = [new Reaper(context, pools), new NetworkKeeper(context)];
  const { reaperIntervalMs, networksLookedAtMs } = dependencies.settings;
  const rounds = [
    new Rounds(reaperIntervalMs, () => reaper.pass()),
    new Rounds(networksLookedAtMs, () => networks.pass()),
  ];
  let unwatch = (): void => undefined;
  const close = (): void => {
    context.closing = true;
    unwatch();
    abortDryRuns(context);
    dismissReaders(context);
  };
  return {
    operations: operationsOf(context),
    executions: executionOperations(context),
    files: fileOperations(context),
    ports: portOperations(context),
    snapshots: snapshotOperations(context),
    consoles: consoleOperations(context),
    pools: poolOperations(context, pools),
    resources: resourceOperations(context),
    reconcile: () => reconcile(context),
    startKeepers: () => {
      for (const each of rounds) each.start();
      unwatch = watchOvershoot(context);
    },
    census: () => census(context),
    directory: sandboxDirectory(context),
    addressUse: () => context.leases.useOf("address"),
    dependants: () => {
      const records = context.catalogue.all().map(({ record }) => record);
      return dependantsOf(records, context.pools.all());
    },
    close,
    shutdown: async (budgetMs) => {
      close();
      await letGo(context, rounds, budgetMs);
    },
  };
}

function operationsOf(context: Context): Operations {
  const find = (caller: Caller, id: string): Sandbox => context.catalogue.find(caller, id);
  // Async, so that an id which is not found rejects instead of throwing.
  return {
    create: (caller, request) => create(context, caller, request),
    list: (caller, filter) => context.catalogue.list(caller, filter).map((sandbox) => context.render(sandbox)),
    get: (caller, id) => {
      const sandbox = find(caller, id);
      refreshUsage(context, sandbox);
      return context.render(sandbox);
    },
    visible: (caller, id) => {
      const sandbox = context.catalogue.byId(id);
      return sandbox !== undefined && context.catalogue.sees(caller, sandbox);
    },
    remove: async (caller, id, idempotency) => await remove(context, find(caller, id), idempotency),
    start: async (caller, id) => await start(context, find(caller, id)),
    stop: async (caller, id) => await stop(context, find(caller, id)),
    restart: async (caller, id) => await restart(context, find(caller, id)),
    pause: async (caller, id, options) => await pause(context, find(caller, id), options),
    resume: async (caller, id) => await resume(context, find(caller, id)),
    update: async (caller, id, patch) => await update(context, find(caller, id), patch),
    ping: (caller, id) => onGuest(context, caller, id, ping),
    process: (caller, id, request) => onGuest(context, caller, id, (sandbox) => runProcess(context, sandbox, request)),
    readFile: (caller, id, path) => onGuest(context, caller, id, (sandbox) => readFile(context, sandbox, path)),
    writeFile: (caller, id, path, content, mode) =>
      onGuest(context, caller, id, (sandbox) => writeFile(context, sandbox, path, content, mode)),
    baseline: (caller, id, paths) => onGuest(context, caller, id, (sandbox) => takeBaseline(context, sandbox, paths)),
    changes: (caller, id, paths) =>
      onGuest(context, caller, id, (sandbox) => changesSinceBaseline(context, sandbox, paths)),
    dryRun: async (caller, id, request) => await dryRun(context, await awakeSandbox(context, caller, id), request),
    quota: (caller) => context.catalogue.quota(caller.token),
  };
}

function census(context: Context): ReturnType<SandboxCore["census"]> {
  const byStatus = new Map<Status, number>(STATUSES.map((status) => [status, 0]));
  const byBackend = new Map<string, number>();
  for (const sandbox of context.catalogue.all()) {
    const status = statusOf(stateNow(sandbox));
    byStatus.set(status, (byStatus.get(status) ?? 0) + 1);
    byBackend.set(sandbox.record.backend, (byBackend.get(sandbox.record.backend) ?? 0) + 1);
  }
  return { byStatus, byBackend };
}
