// What of this host's files the sandboxes and pools were made from, for whoever wants to remove such files.
import type { Dependant } from "../templates/dependants.ts";
import type { PoolRecord } from "./pools/book.ts";
import type { SandboxRecord } from "./record.ts";

/** Sandboxes that wait in a pool go by its name: their ids are known to nobody. */
export function dependantsOf(records: readonly SandboxRecord[], pools: readonly PoolRecord[]): Dependant[] {
  const waiting = new Set<string | null>(pools.map(({ id }) => id));
  return [
    ...records
      .filter(({ pool }) => !waiting.has(pool))
      .map(({ id, spec }) => ({ name: `sandbox ${id}`, specification: spec })),
    ...pools.map(({ name, backendRequest }) => ({ name: `pool ${name}`, specification: backendRequest })),
  ];
}
