// Host-wide values that one sandbox holds at a time (uids, later addresses and vsock ids). The lowest free one is given;
// one that was used waits in quarantine until nothing on the host can still be using it.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Change, LeaseRow, Store } from "../state/change.ts";
import type { CrashHook } from "./crash-points.ts";
import type { LeaseKind, LeaseRange } from "./dependencies.ts";

interface LeaseDependencies {
  readonly store: Store;
  readonly ranges: Readonly<Partial<Record<LeaseKind, LeaseRange>>>;
  /** Whether nothing on the host uses the value any more. */
  readonly isClean: (kind: LeaseKind, value: number) => Promise<boolean>;
  /** Makes the range of a kind this agent's own on the host; called until it has succeeded once. */
  readonly claim: (kind: LeaseKind) => Promise<void>;
  readonly crashPoint: CrashHook;
}

/** Values by kind, as they go into a record and a launch. */
export type Leases = Readonly<Partial<Record<LeaseKind, number>>>;

export interface LeaseUse {
  readonly capacity: number;
  readonly allocated: number;
  readonly quarantined: number;
}

const entriesOf = (leases: Leases): [LeaseKind, number][] => Object.entries(leases) as [LeaseKind, number][];

export class LeaseBook {
  readonly #taken = new Map<LeaseKind, Map<number, LeaseRow["state"]>>();
  readonly #claimed = new Set<LeaseKind>();
  #sweep: Promise<void> | null = null;

  constructor(private readonly dependencies: LeaseDependencies) {}

  /** Takes over what the state holds; what was given is claimed again, as a reboot of the host forgets claims. */
  async restore(rows: readonly LeaseRow[]): Promise<void> {
    for (const row of rows) this.#states(row.kind as LeaseKind).set(row.value, row.state);
    for (const kind of this.#taken.keys()) await this.#claim(kind);
  }

  /**
   * Reserves one value of each kind in memory; `take` makes them durable and `cancel` gives them back. Rejects with
   * `UID_POOL_EXHAUSTED` or `ADDRESSES_EXHAUSTED` after it tried to free what is in quarantine.
   */
  async reserve(kinds: readonly LeaseKind[]): Promise<Leases> {
    const reserved: Partial<Record<LeaseKind, number>> = {};
    for (const kind of kinds) await this.#claim(kind);
    for (const kind of kinds) {
      if (this.#lowestFree(kind) === null) await this.#freeOne(kind);
      const value = this.#lowestFree(kind);
      if (value === null) {
        this.cancel(reserved);
        throw exhausted(kind);
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

  /** How many values of a kind there are, how many are not free, and how many of these only wait in quarantine. */
  useOf(kind: LeaseKind): LeaseUse {
    const { first, count, excluded } = this.dependencies.ranges[kind] ?? { first: 0, count: 0 };
    const left = [...(excluded ?? [])].filter((value) => value >= first && value < first + count).length;
    return { capacity: count - left, allocated: this.#states(kind).size, quarantined: this.#quarantined(kind).length };
  }

  /** Frees quarantined values that are clean, a bounded number of checks at a time. Joins a sweep that is running. */
  sweep(): Promise<void> {
    this.#sweep ??= this.#sweepOnce().finally(() => {
      this.#sweep = null;
    });
    return this.#sweep;
  }

  async #sweepOnce(): Promise<void> {
    const waiting = [...this.#taken.keys()].flatMap((kind) =>
      this.#quarantined(kind).map((value) => ({ kind, value })),
    );
    // Oldest first: a map keeps the order in which values were set.
    for (const { kind, value } of waiting.slice(0, limits.leaseChecksPerPassMax)) {
      const freed = await this.#freeIfClean(kind, value);
      // One that is not clean goes to the end, so that it does not keep the others waiting.
      if (!freed) this.#requeue(kind, value);
    }
  }

  async #claim(kind: LeaseKind): Promise<void> {
    if (this.#claimed.has(kind)) return;
    await this.dependencies.claim(kind);
    this.#claimed.add(kind);
  }

  /** Frees the first quarantined value that is clean. */
  async #freeOne(kind: LeaseKind): Promise<void> {
    for (const value of this.#quarantined(kind)) {
      if (await this.#freeIfClean(kind, value)) return;
    }
  }

  async #freeIfClean(kind: LeaseKind, value: number): Promise<boolean> {
    const { isClean, store, crashPoint } = this.dependencies;
    const states = this.#states(kind);
    if (states.get(value) !== "quarantined" || !(await isClean(kind, value))) return false;
    // Somebody else may have freed it, and another may have taken it, during the check.
    if (states.get(value) !== "quarantined") return false;
    states.set(value, "leased");
    try {
      await store.commit([{ free: "lease", kind, value }]);
    } catch (error) {
      states.set(value, "quarantined");
      throw error;
    }
    states.delete(value);
    await crashPoint("lease.freed");
    return true;
  }

  #quarantined(kind: LeaseKind): number[] {
    return [...this.#states(kind)].filter(([, state]) => state === "quarantined").map(([value]) => value);
  }

  #requeue(kind: LeaseKind, value: number): void {
    const states = this.#states(kind);
    if (states.get(value) !== "quarantined") return;
    states.delete(value);
    states.set(value, "quarantined");
  }

  #lowestFree(kind: LeaseKind): number | null {
    const range = this.dependencies.ranges[kind];
    if (range === undefined) return null;
    const states = this.#states(kind);
    for (let value = range.first; value < range.first + range.count; value += 1) {
      if (!states.has(value) && range.excluded?.has(value) !== true) return value;
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

function exhausted(kind: LeaseKind): AgentError {
  if (kind === "address") return new AgentError("ADDRESSES_EXHAUSTED");
  return new AgentError("UID_POOL_EXHAUSTED", kind === "cid" ? `no free ${kind}` : undefined);
}
