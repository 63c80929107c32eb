// The programs of `native/bpf` in the kernel without a dataplane: a test writes into their maps what the dataplane would, and
// has the clock in its hand.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { decodeTraffic, TRAFFIC_BYTES } from "../../../ffi/layout/bpf.ts";
import type { BpfMap } from "../../../ffi/libbpf/maps.ts";
import { BpfObject } from "../../../ffi/libbpf/objects.ts";
import { wordKey } from "../../../plugins/host/ebpf/kernel-map.ts";
import { interfaceElement, type InterfacePlace, type Rule, rulesOf } from "../../../plugins/host/ebpf/rules.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";

const NATIVE = join(import.meta.dir, "../../../dist/native");
/** Smaller than on a host, so that loading is quick. */
const MAPS = {
  fluxvm_ct: { maxEntries: 8192 },
  fluxvm_flows: { maxEntries: 16_384 },
  fluxvm_drops: { maxEntries: 16_384 },
} as const;
/** Maps of what was seen, and those that have one element for each slot. */
const SEEN = ["fluxvm_flows", "fluxvm_drops", "fluxvm_ct"] as const;
const OF_SLOT = ["fluxvm_rate", "fluxvm_stats", "fluxvm_learned"] as const;

/** Packets and bytes of whole frames. */
export interface Totals {
  readonly allowedPackets: number;
  readonly allowedBytes: number;
  readonly droppedPackets: number;
  readonly droppedBytes: number;
}

/** What decides about packets of guests. */
export class TrafficPrograms {
  private constructor(readonly object: BpfObject) {}

  static async load(): Promise<TrafficPrograms> {
    const bytes = await readFile(join(NATIVE, "fluxvm_tc.bpf.o"));
    return new TrafficPrograms(await BpfObject.load(bytes, { name: "tc", maps: MAPS }));
  }

  map(name: string): BpfMap {
    return this.object.map(name);
  }

  /** The time that programs go by, in nanoseconds. */
  setClock(now: bigint): void {
    this.map("fluxvm_clock").set(wordKey(0), new Uint8Array(BigUint64Array.of(now).buffer));
  }

  /** Nothing was ever seen, and what has this slot is new. */
  forget(slot: number): void {
    for (const name of SEEN) {
      const map = this.map(name);
      for (const key of [...map.entries()].map((element) => Uint8Array.from(element.key))) map.delete(key);
    }
    for (const name of OF_SLOT) {
      const map = this.map(name);
      map.set(wordKey(slot), new Uint8Array(map.facts.elementBytes));
    }
  }

  /** From now on in force for the interface of `place`, as the dataplane does it: rules first, then the one element. */
  enforce(policy: EffectivePolicy, policyId: number, place: InterfacePlace): Rule[] {
    const rules = rulesOf(policy, policyId);
    for (const { map, key, value } of rules) this.map(map).set(key, value);
    const { hostInterfaceIndex } = place.network;
    this.map("fluxvm_iface").set(wordKey(hostInterfaceIndex), interfaceElement(policy, policyId, place));
    return rules;
  }

  totals(slot: number): Totals {
    const all = this.map("fluxvm_stats").get(wordKey(slot)) ?? new Uint8Array(0);
    const sum = { allowedPackets: 0, allowedBytes: 0, droppedPackets: 0, droppedBytes: 0 };
    for (let at = 0; at < all.length; at += TRAFFIC_BYTES) {
      const ofProcessor = decodeTraffic(all.subarray(at, at + TRAFFIC_BYTES));
      for (const name of Object.keys(sum) as (keyof Totals)[]) sum[name] += Number(ofProcessor[name]);
    }
    return sum;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.object.close();
  }
}

/** What decides about packets that come to the host. */
export async function loadGuard(): Promise<BpfObject> {
  return await BpfObject.load(await readFile(join(NATIVE, "fluxvm_xdp.bpf.o")), { name: "guard" });
}
