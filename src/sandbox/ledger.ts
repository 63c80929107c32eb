// The journal of one owner: every resource is written down by name before it is made and forgotten after it is
// released, so that a create that fails, a delete and a restart after a crash give back the same things the same way.
import { limits } from "../config/limits.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { Logger } from "../contracts/log.ts";
import type { Release, Resource, ResourceScope } from "../contracts/resource.ts";
import { AgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Change, ResourceRow, Store } from "../state/change.ts";
import type { Clock } from "./clock.ts";
import type { CrashHook } from "./crash-points.ts";

export interface LedgerDependencies {
  readonly store: Store;
  /** Release by resource kind, of every plugin and of the core. */
  readonly releases: ReadonlyMap<string, Release>;
  readonly clock: Clock;
  readonly crashPoint: CrashHook;
  readonly log: Logger;
}

/** A resource whose release failed for good; its row is kept, and what is older stays because it may be in use. */
export interface StuckResource {
  readonly owner: string;
  readonly kind: string;
  readonly name: string;
  readonly reason: string;
}

/** What `releaseAll` did: the rows to forget, and what stopped it. */
export interface Released {
  readonly changes: readonly Change[];
  readonly stuck: StuckResource | null;
}

const put = (row: ResourceRow): Change => ({ put: "resource", row });

export class Ledger implements ResourceScope {
  /** Oldest first. */
  #rows: ResourceRow[];
  /** Rows that are held but whose stored form still says `intent`; both are released alike, so this can wait. */
  readonly #unsaved = new Set<ResourceRow>();
  #nextSeq: number;

  constructor(
    private readonly dependencies: LedgerDependencies,
    readonly owner: string,
    rows: readonly ResourceRow[] = [],
  ) {
    this.#rows = [...rows].sort((a, b) => a.seq - b.seq);
    this.#nextSeq = (this.#rows.at(-1)?.seq ?? 0) + 1;
  }

  held(): readonly Resource[] {
    return this.#rows.map(({ kind, name, data }) => ({ kind, name, data }));
  }

  get isEmpty(): boolean {
    return this.#rows.length === 0;
  }

  /** The change that writes an intent, for a commit that the caller composes; `make` it with `fulfil` afterwards. */
  intend(resource: Resource): Change {
    const earlier = this.#find(resource.kind, resource.name);
    if (earlier?.state === "held")
      throw new Error(`${resource.kind} ${resource.name} is already held by ${this.owner}`);
    if (earlier !== undefined) return put(this.#replace(earlier, { ...earlier, data: resource.data }));
    if (this.#rows.length >= limits.resourcesPerOwnerMax) throw new Error(`${this.owner} holds too many resources`);
    const row: ResourceRow = {
      owner: this.owner,
      seq: this.#nextSeq,
      kind: resource.kind,
      name: resource.name,
      data: resource.data,
      state: "intent",
    };
    this.#nextSeq += 1;
    this.#rows.push(row);
    return put(row);
  }

  /** Makes a resource whose intent is durable. */
  async fulfil<T>(kind: string, name: string, make: () => Promise<T>): Promise<T> {
    const made = await make();
    await this.dependencies.crashPoint("ledger.made");
    const row = this.#find(kind, name);
    if (row !== undefined) this.#unsaved.add(this.#replace(row, { ...row, state: "held" }));
    return made;
  }

  async acquire<T>(resource: Resource, make: () => Promise<T>): Promise<T> {
    await this.dependencies.store.commit([this.intend(resource), ...this.settle()]);
    await this.dependencies.crashPoint("ledger.intent");
    return await this.fulfil(resource.kind, resource.name, make);
  }

  async update(kind: string, name: string, data: JsonObject): Promise<void> {
    const row = this.#find(kind, name);
    if (row === undefined) throw new Error(`${kind} ${name} is not held by ${this.owner}`);
    await this.dependencies.store.commit([put(this.#replace(row, { ...row, data })), ...this.settle()]);
    await this.dependencies.crashPoint("ledger.updated");
  }

  async release(kind: string, name: string): Promise<void> {
    const row = this.#find(kind, name);
    if (row === undefined) return;
    const stuck = await this.#releaseRow(row);
    if (stuck !== null) throw new AgentError("RELEASE_FAILED", undefined, { details: { ...stuck } });
    await this.dependencies.store.commit([this.#forget(row)]);
  }

  /** Writes that rows are held, for a commit that the caller composes anyway. */
  settle(): Change[] {
    const changes = [...this.#unsaved].map(put);
    this.#unsaved.clear();
    return changes;
  }

  /**
   * Releases everything, newest first, and stops at the first that cannot be released. The caller commits `changes`;
   * a crash before that only means that the same releases run again.
   */
  async releaseAll(): Promise<Released> {
    const changes: Change[] = [];
    for (const row of this.#rows.toReversed()) {
      const stuck = await this.#releaseRow(row);
      if (stuck !== null) return { changes, stuck };
      changes.push(this.#forget(row));
    }
    return { changes, stuck: null };
  }

  async #releaseRow(row: ResourceRow): Promise<StuckResource | null> {
    const { crashPoint, log, clock } = this.dependencies;
    const { kind, name, data } = row;
    const what = { owner: this.owner, kind, resource: name };
    const release = this.dependencies.releases.get(kind);
    if (release === undefined) return { owner: this.owner, kind, name, reason: "no plugin here releases this kind" };
    await crashPoint("ledger.releasing");
    for (let attempt = 1; ; attempt += 1) {
      try {
        await withDeadline(release({ kind, name, data }), limits.releaseTimeoutMs, `releasing ${kind} ${name}`);
        await crashPoint("ledger.released");
        return null;
      } catch (error) {
        const reason = error instanceof Error ? error.message : String(error);
        log.warn({ ...what, attempt, reason }, "a release failed");
        const hung = error instanceof AgentError && error.code === "DEADLINE_EXCEEDED";
        if (hung || attempt >= limits.releaseAttemptsMax) {
          log.error({ ...what, reason }, "a resource is stuck; its row is kept");
          return { owner: this.owner, kind, name, reason };
        }
        await clock.sleep(limits.releaseBackoffMs * 2 ** (attempt - 1));
      }
    }
  }

  #find(kind: string, name: string): ResourceRow | undefined {
    return this.#rows.find((row) => row.kind === kind && row.name === name);
  }

  #replace(before: ResourceRow, after: ResourceRow): ResourceRow {
    this.#rows = this.#rows.map((row) => (row === before ? after : row));
    this.#unsaved.delete(before);
    return after;
  }

  #forget(row: ResourceRow): Change {
    this.#rows = this.#rows.filter((other) => other.seq !== row.seq);
    this.#unsaved.delete(row);
    return { remove: "resource", owner: this.owner, kind: row.kind, name: row.name };
  }
}
