// The policies in the kernel: rules under a number, and one element an interface that says which number is in force.
// Replacing a policy fills rules under a new number, exchanges the element, and removes the old rules when no packet can
// be deciding by them any more; at no point is there less or more in force than one whole policy.
import { decodeInterfaceConfig, type InterfaceConfig } from "../../../ffi/layout/bpf.ts";
import { isHostError } from "../../../ffi/status.ts";
import type { Logger } from "../../../src/contracts/log.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { type TrafficMaps, walk, wordKey } from "./kernel-map.ts";
import { PolicyNumbers } from "./policy-ids.ts";
import { type InterfacePlace, interfaceElement, type Rule, RULE_MAPS, type RuleMap, rulesOf } from "./rules.ts";

/** Keys of one policy, those of each map one after the other. */
type RuleKeys = ReadonlyMap<RuleMap, Uint8Array>;

/** Tests end a process at these steps. */
export type UpdateStep = "filled" | "flipped" | "removed";

export interface PolicyTableOptions {
  readonly maps: TrafficMaps;
  /** Where numbers are reserved. */
  readonly numbersPath: string;
  /** Resolves when every packet that was being decided at the call has been decided. */
  readonly gracePeriod: () => Promise<void>;
  readonly log: Logger;
  readonly reached?: (step: UpdateStep) => void;
}

export class PolicyTable {
  readonly #maps: TrafficMaps;
  /** Keys of what is in the maps, by number. */
  readonly #rules = new Map<number, RuleKeys>();
  /** Removals that wait for their grace period. */
  readonly #removing = new Set<Promise<void>>();
  readonly #options: PolicyTableOptions;
  readonly #numbers: PolicyNumbers;

  private constructor(
    options: PolicyTableOptions,
    numbers: PolicyNumbers,
    /** The interfaces that were in the maps when they were opened. */
    readonly found: readonly InterfaceConfig[],
  ) {
    this.#options = options;
    this.#maps = options.maps;
    this.#numbers = numbers;
  }

  /** Reads what is there. Rules that no interface names are remains of an agent that was cut off, and are removed. */
  static async open(options: PolicyTableOptions): Promise<PolicyTable> {
    const found = new Map<number, Map<RuleMap, Uint8Array[]>>();
    for (const map of RULE_MAPS) {
      for await (const { key } of walk(options.maps[map])) {
        const policyId = policyOf(map, key);
        const byMap = found.get(policyId) ?? new Map<RuleMap, Uint8Array[]>();
        const keys = byMap.get(map) ?? [];
        keys.push(new Uint8Array(key));
        found.set(policyId, byMap.set(map, keys));
      }
    }
    const interfaces: InterfaceConfig[] = [];
    for await (const { value } of walk(options.maps.fluxvm_iface)) interfaces.push(decodeInterfaceConfig(value));
    const live = new Set(interfaces.map(({ policyId }) => policyId));
    const highest = [...found.keys(), ...live].reduce((most, number) => Math.max(most, number), 0);
    const table = new PolicyTable(options, await PolicyNumbers.open(options.numbersPath, highest), interfaces);
    for (const [policyId, byMap] of found) {
      table.#rules.set(policyId, new Map([...byMap].map(([map, keys]) => [map, Buffer.concat(keys)])));
    }
    for (const policyId of found.keys()) if (!live.has(policyId)) table.#remove(policyId);
    return table;
  }

  /** What decides the packets of an interface now, or null. */
  inForce(ifindex: number): InterfaceConfig | null {
    const element = this.#maps.fluxvm_iface.get(wordKey(ifindex));
    return element === null ? null : decodeInterfaceConfig(element);
  }

  /**
   * Puts `policy` in force for the interface of `place`, whatever was in force before. When it rejects, that still is:
   * `DATAPLANE_FAILED`, also where the maps have no room.
   */
  async enforce(policy: EffectivePolicy, place: InterfacePlace): Promise<void> {
    const ifindex = place.network.hostInterfaceIndex;
    const policyId = await this.#numbers.take();
    const rules = compiled(policy, policyId);
    const element = interfaceElement(policy, policyId, place);
    const byMap = Map.groupBy(rules, ({ map }) => map);
    this.#rules.set(policyId, keysOf(byMap));
    const before = this.inForce(ifindex)?.policyId ?? null;
    try {
      for (const [map, ofMap] of byMap) {
        this.#maps[map].setAll(joined(ofMap, "key"), joined(ofMap, "value"));
      }
      this.#options.reached?.("filled");
      this.#maps.fluxvm_iface.set(wordKey(ifindex), element);
    } catch (error) {
      this.#remove(policyId);
      throw asDataplaneFailure(error);
    }
    this.#options.reached?.("flipped");
    if (before !== null) this.#removeLater(before);
  }

  /** Replaces what is no rule in the element of an interface. Rejects with `DATAPLANE_FAILED` when there is none. */
  change(ifindex: number, edit: (config: InterfaceConfig) => Uint8Array): void {
    const config = this.inForce(ifindex);
    if (config === null) throw new AgentError("DATAPLANE_FAILED", "the interface has no policy");
    this.#maps.fluxvm_iface.set(wordKey(ifindex), edit(config));
  }

  /** Takes everything of an interface out. Its packets are dropped from now on. Nothing happens when it is out. */
  withdraw(ifindex: number): void {
    const config = this.inForce(ifindex);
    if (config === null) return;
    this.#maps.fluxvm_iface.delete(wordKey(ifindex));
    this.#removeLater(config.policyId);
  }

  /** Resolves when nothing is left to remove. */
  async settled(): Promise<void> {
    while (this.#removing.size > 0) await Promise.all(this.#removing);
  }

  #removeLater(policyId: number): void {
    const removal = this.#options
      .gracePeriod()
      .then(() => {
        this.#remove(policyId);
        this.#options.reached?.("removed");
      })
      .catch((error: unknown) => {
        this.#options.log.warn({ policyId, err: error }, "rules of an old policy are left until the next start");
      })
      .finally(() => this.#removing.delete(removal));
    this.#removing.add(removal);
  }

  #remove(policyId: number): void {
    for (const [map, keys] of this.#rules.get(policyId) ?? []) this.#maps[map].deleteAll(keys);
    this.#rules.delete(policyId);
  }
}

function keysOf(byMap: ReadonlyMap<RuleMap, readonly Rule[]>): RuleKeys {
  return new Map([...byMap].map(([map, rules]) => [map, joined(rules, "key")]));
}

function joined(rules: readonly Rule[], part: "key" | "value"): Uint8Array {
  return Buffer.concat(rules.map((rule) => rule[part]));
}

function compiled(policy: EffectivePolicy, policyId: number): Rule[] {
  try {
    return rulesOf(policy, policyId);
  } catch (cause) {
    throw new AgentError("DATAPLANE_FAILED", `the policy cannot be enforced: ${(cause as Error).message}`, { cause });
  }
}

function policyOf(map: RuleMap, key: Uint8Array): number {
  const view = new DataView(key.buffer, key.byteOffset, key.byteLength);
  // A prefix comes before the number in keys of ranges.
  return view.getUint32(map === "fluxvm_ports" || map === "fluxvm_names" ? 0 : 4, true);
}

function asDataplaneFailure(cause: unknown): AgentError {
  const isFull = isHostError(cause, "E2BIG", "ENOSPC", "ENOMEM");
  const reason = isFull ? "the maps of this host have no room for the policy" : "the policy could not be written";
  return new AgentError("DATAPLANE_FAILED", reason, { cause });
}
