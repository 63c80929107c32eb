// What all sandboxes sent and were denied since the agent began, as sums that only grow: the dataplane counts each sandbox
// from its own beginning, and forgets it with its end.
import type { Observation, TrafficStats } from "../contracts/dataplane.ts";

export const NO_TRAFFIC: TrafficStats = {
  allowedPackets: 0n,
  allowedBytes: 0n,
  droppedPackets: 0n,
  droppedBytes: 0n,
};

/** Sandboxes that are asked for before the event loop has its turn. */
const ASKED_AT_ONCE = 128;

export class TrafficTotals {
  #totals: TrafficStats = NO_TRAFFIC;
  #last = new Map<string, TrafficStats>();
  #reading: Promise<TrafficStats> | null = null;

  /** `connected`: the sandboxes that have a network now. */
  constructor(
    private readonly observation: Pick<Observation, "stats">,
    private readonly connected: () => readonly string[],
  ) {}

  /** The sums with what has come since the last time. What a sandbox sent between that and its end is in none. */
  read(): Promise<TrafficStats> {
    // What came since the last time may be counted once only, however many ask.
    this.#reading ??= this.#read().finally(() => {
      this.#reading = null;
    });
    return this.#reading;
  }

  async #read(): Promise<TrafficStats> {
    const last = new Map<string, TrafficStats>();
    for (const [place, id] of this.connected().entries()) {
      if (place % ASKED_AT_ONCE === ASKED_AT_ONCE - 1) await new Promise(setImmediate);
      // One that goes away meanwhile has no counters any more.
      const now = await this.observation.stats(id).catch(() => null);
      const before = this.#last.get(id);
      if (now !== null) this.#totals = sum(this.#totals, before === undefined ? now : since(before, now));
      const known = now ?? before;
      if (known !== undefined) last.set(id, known);
    }
    this.#last = last;
    return this.#totals;
  }
}

/** Counters that went down were begun anew. */
function since(before: TrafficStats, now: TrafficStats): TrafficStats {
  return map(now, (key) => (now[key] >= before[key] ? now[key] - before[key] : now[key]));
}

const sum = (one: TrafficStats, other: TrafficStats): TrafficStats => map(one, (key) => one[key] + other[key]);

function map(shape: TrafficStats, value: (key: keyof TrafficStats) => bigint): TrafficStats {
  const entries = (Object.keys(shape) as (keyof TrafficStats)[]).map((key) => [key, value(key)]);
  return Object.fromEntries(entries) as TrafficStats;
}
