// What this folder asks of a map in the kernel. `ffi/libbpf` has the real ones; tests have maps that fail where they are
// told to.
import type { TRAFFIC_MAPS } from "../../../ffi/layout/bpf.ts";

const ELEMENTS_A_TURN = 4096;

export type TrafficMap = keyof typeof TRAFFIC_MAPS;

/** Calls answer at once and throw a `HostError`. Values of per-CPU maps are one behind the other. */
export interface KernelMap {
  get(key: Uint8Array): Uint8Array | null;
  set(key: Uint8Array, value: Uint8Array): void;
  /** False: it was not there. */
  delete(key: Uint8Array): boolean;
  /** Keys and values one after the other. Those before the first that fails stay. */
  setAll(keys: Uint8Array, values: Uint8Array): void;
  /** Those that are not there are no error. */
  deleteAll(keys: Uint8Array): number;
  /** What is there from the beginning of the walk to its end, and some of the rest. */
  entries(): Iterable<Element>;
}

export interface Element {
  readonly key: Uint8Array;
  readonly value: Uint8Array;
}

/** The elements of a map, with turns for the event loop. */
export async function* walk(map: KernelMap): AsyncGenerator<Element, void, undefined> {
  let seen = 0;
  for (const element of map.entries()) {
    if (++seen % ELEMENTS_A_TURN === 0) await new Promise(setImmediate);
    yield element;
  }
}

export type TrafficMaps = Readonly<Record<TrafficMap, KernelMap>>;

/** The 32-bit key of an array or of an interface. */
export function wordKey(value: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new Uint32Array([value]).buffer);
}
