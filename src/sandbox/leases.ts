// Host-wide values that one sandbox holds at a time (uids, later addresses and vsock ids). The lowest free one is given;
// one that was used waits in quarantine until nothing on the host can still be using it.
import type { Logger } from "../contracts/log.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Change, LeaseRow, Store } from "../state/change.ts";
import type { CrashHook } from "./crash-points.ts";
import type { LeaseKind, LeaseRange } from "./dependencies.ts";

interface LeaseDependencies {
  readonly store: Store;
  readonly ranges: Readonly<Partial<Record<LeaseKind, LeaseRange>>>;
  /** Whether nothing on the host uses the value any more. */
  readonly isClean: (kind: LeaseKind, value: number) => Promise<boolean>;
  readonly log: Logger;
  readonly crashPoint: CrashHook;
}

/** Values by kind, as they go into a record and a launch. */
export type Leases = Readonly<Partial<Record<LeaseKind, number>>>;

const entriesOf = (leases: Leases): [LeaseKind, number][] => Object.entries(leases) as [LeaseKind, number][];

export class LeaseBook {
  readonly #taken = new Map<LeaseKind, Map<number, LeaseRow["state"]>>();
  #sweep: Promise<void> | null = null;

  constructor(private readonly dependencies: LeaseDependencies) {}

  restore(rows: readonly LeaseRow[]): void {
    for (const row of rows) this.#states(row.kind as LeaseKind).set(row.value, row.state);
  }

  /**
   * Reserves one value of each kind in memory; `take` makes them durable and `cancel` gives them back. Rejects with
   * `UID_POOL_EXHAUSTED` after it tried to free what is in quarantine.
   */
  async reserve(kinds: readonly LeaseKind[]): Promise<Leases> {
    const reserved: Partial<Record<LeaseKind, number>> = {};
    for (const kind of kinds) {
      let value = this.#lowestFree(kind);
      if (value === null) {
        await this.sweep();
        value = this.#lowestFree(kind);
      }
      if (value === null) {
        this.cancel(reserved);
        throw new AgentError("UID_POOL_EXHAUSTED", kind === "uid" ? undefined : `no free ${kind}`);
      }
      this.#states(kind).set(value, "leased");
      reserved[kind] = value;
    }
    return reserved;
  }

  /** The changes that make reserved values durable for `owner`. */
  take(leases: Leases, owner: string): Change[] {
    return entriesOf(leases).map(([kind, value]) => ({ take: "lease", row: { kind, value, owner, state: "leased" } }));
  }

  /** Gives back values that were never used. */
  cancel(leases: Leases): void {
    for (const [kind, value] of entriesOf(leases)) this.#states(kind).delete(value);
  }

  /** Follows a durable quarantine of these values. */
  quarantine(leases: Leases): void {
    for (const [kind, value] of entriesOf(leases)) this.#states(kind).set(value, "quarantined");
  }

  /** Frees every quarantined value that is clean. Joins a sweep that is running. */
  sweep(): Promise<void> {
    this.#sweep ??= this.#sweepOnce().finally(() => {
      this.#sweep = null;
    });
    return this.#sweep;
  }

  async #sweepOnce(): Promise<void> {
    const { isClean, store, crashPoint, log } = this.dependencies;
    for (const [kind, states] of this.#taken) {
      for (const [value, state] of [...states]) {
        if (state !== "quarantined") continue;
        if (!(await isClean(kind, value))) {
          log.debug({ kind, value }, "a lease is not clean yet");
          continue;
        }
        await store.commit([{ free: "lease", kind, value }]);
        states.delete(value);
        await crashPoint("remove.lease-freed");
      }
    }
  }

  #lowestFree(kind: LeaseKind): number | null {
    const range = this.dependencies.ranges[kind];
    if (range === undefined) return null;
    const states = this.#states(kind);
    for (let value = range.first; value < range.first + range.count; value += 1) {
      if (!states.has(value)) return value;
    }
    return null;
  }

  #states(kind: LeaseKind): Map<number, LeaseRow["state"]> {
    let states = this.#taken.get(kind);
    if (states === undefined) {
      states = new Map();
      this.#taken.set(kind, states);
    }
    return states;
  }
}
