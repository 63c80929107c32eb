// Places in the arrays of the maps, one an interface, and what is kept there. A place is cleared before it is used, so
// that no sandbox begins with another's totals, budgets or connections.
import { encodeConnectionBucketKey, LEARNED_ADDRESS_BYTES, LIMITER_BYTES, SLOTS } from "../../../ffi/layout/bpf.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { type TrafficMaps, wordKey } from "./kernel-map.ts";

export class Slots {
  readonly #maps: TrafficMaps;
  readonly #taken: Set<number>;
  #next = 0;

  /** `taken`: those of the interfaces that are there. */
  constructor(maps: TrafficMaps, taken: Iterable<number>) {
    this.#maps = maps;
    this.#taken = new Set(taken);
  }

  /** A clear place. Throws `DATAPLANE_FAILED` when all are taken. */
  take(): number {
    for (let tries = 0; tries < SLOTS; tries++) {
      const slot = this.#next;
      this.#next = (this.#next + 1) % SLOTS;
      if (this.#taken.has(slot)) continue;
      this.#taken.add(slot);
      this.#clear(slot);
      return slot;
    }
    throw new AgentError("DATAPLANE_FAILED", `this host has ${SLOTS} interfaces under policy, and can have no more`);
  }

  /** Gives a place back with the memory of its connections. */
  give(slot: number, buckets: number): void {
    this.#taken.delete(slot);
    for (let bucket = 0; bucket < buckets; bucket++) {
      this.#maps.fluxvm_ct.delete(encodeConnectionBucketKey({ slot, bucket }));
    }
  }

  #clear(slot: number): void {
    const key = wordKey(slot);
    this.#maps.fluxvm_rate.set(key, new Uint8Array(LIMITER_BYTES));
    this.#maps.fluxvm_learned.set(key, new Uint8Array(LEARNED_ADDRESS_BYTES));
    const totals = this.#maps.fluxvm_stats.get(key);
    if (totals !== null) this.#maps.fluxvm_stats.set(key, totals.fill(0));
  }
}
