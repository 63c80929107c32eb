// What tests of this folder begin with: a policy, a network, and maps that live in this process and can fail.
import { TRAFFIC_MAPS } from "../../../../ffi/layout/bpf.ts";
import { HostError } from "../../../../ffi/status.ts";
import { DENIES_ALL } from "../../../../src/conformance/dataplane.ts";
import type { EffectivePolicy } from "../../../../src/contracts/network-policy.ts";
import type { SandboxNetwork } from "../../../../src/contracts/network.ts";
import type { KernelMap, TrafficMap, TrafficMaps } from "../kernel-map.ts";

/** Denies everything; `changes` says what else. */
export function policyWith(changes: Partial<EffectivePolicy> = {}): EffectivePolicy {
  return { ...DENIES_ALL, fingerprint: "00000000000000aa", ...changes };
}

export function networkWith(changes: Partial<SandboxNetwork> = {}): SandboxNetwork {
  return {
    mode: "tap",
    hostInterface: "vhaaaaaaaaaaaa",
    hostInterfaceIndex: 7,
    hook: "routed",
    namespace: "eph-aaaaaaaaaaaa",
    tap: "tapaaaaaaaaaaaa",
    mac: "02:fc:00:00:00:03",
    guestAddress: "169.254.0.19",
    innerAddress: "169.254.0.3",
    gateway: "169.254.0.17",
    prefixLength: 28,
    leaseFile: null,
    ...changes,
  };
}

/** A map in this process. */
export class FakeMap implements KernelMap {
  readonly elements = new Map<string, Uint8Array>();
  /** Fails the call after this many more. */
  failsAfter = Number.POSITIVE_INFINITY;

  constructor(
    private readonly keyBytes: number,
    private readonly onChange: () => void,
  ) {}

  get(key: Uint8Array): Uint8Array | null {
    return this.elements.get(key.toHex())?.slice() ?? null;
  }

  set(key: Uint8Array, value: Uint8Array): void {
    if (this.failsAfter <= 0) throw new HostError(7, "bpfMapUpdate");
    this.failsAfter -= 1;
    this.elements.set(key.toHex(), value.slice());
    this.onChange();
  }

  delete(key: Uint8Array): boolean {
    const was = this.elements.delete(key.toHex());
    this.onChange();
    return was;
  }

  setAll(keys: Uint8Array, values: Uint8Array): void {
    for (let at = 0; at < keys.length / this.keyBytes; at++) {
      const valueBytes = values.length / (keys.length / this.keyBytes);
      this.set(part(keys, at, this.keyBytes), part(values, at, valueBytes));
    }
  }

  deleteAll(keys: Uint8Array): number {
    let found = 0;
    for (let at = 0; at < keys.length / this.keyBytes; at++)
      found += Number(this.delete(part(keys, at, this.keyBytes)));
    return found;
  }

  entries() {
    return [...this.elements].map(([key, value]) => ({ key: Uint8Array.fromHex(key), value: value.slice() }));
  }
}

function part(bytes: Uint8Array, at: number, length: number): Uint8Array {
  return bytes.subarray(at * length, (at + 1) * length);
}

export function fakeMaps(onChange: () => void = () => undefined): Readonly<Record<TrafficMap, FakeMap>> & TrafficMaps {
  const names = Object.keys(TRAFFIC_MAPS) as TrafficMap[];
  return Object.fromEntries(names.map((name) => [name, new FakeMap(TRAFFIC_MAPS[name].keyBytes, onChange)])) as Record<
    TrafficMap,
    FakeMap
  >;
}
