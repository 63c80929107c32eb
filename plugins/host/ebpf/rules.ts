// From a compiled policy to the elements of maps. Pure: the same policy under the same number is always the same
// elements, so that removing a policy is removing what this gives.
import {
  encodeInterfaceConfig,
  encodeLpm4Key,
  encodeLpm6Key,
  encodeNameKey,
  encodePortKey,
  INTERFACE_FLAGS,
  NAME_FLAGS,
  NAME_KINDS,
  RULE_FLAGS,
} from "../../../ffi/layout/bpf.ts";
import type { EffectivePolicy, PortProtocol } from "../../../src/contracts/network-policy.ts";
import type { SandboxNetwork } from "../../../src/contracts/network.ts";
import { parseAddress, parseCidr, parseHardwareAddress } from "./addresses.ts";
import { namePattern } from "./names.ts";

/** Maps that hold rules, by the number of their policy. */
export const RULE_MAPS = [
  "fluxvm_allow4",
  "fluxvm_allow6",
  "fluxvm_deny4",
  "fluxvm_deny6",
  "fluxvm_ports",
  "fluxvm_names",
] as const;
export type RuleMap = (typeof RULE_MAPS)[number];

export interface Rule {
  readonly map: RuleMap;
  readonly key: Uint8Array<ArrayBuffer>;
  readonly value: Uint8Array<ArrayBuffer>;
}

/** Everything in an interface's element that is no policy's. */
export interface InterfacePlace {
  readonly network: SandboxNetwork;
  readonly slot: number;
  readonly connectionEpoch: number;
  readonly connectionBuckets: number;
  readonly phase: number;
  readonly mark: number;
}

const PROTOCOLS: Readonly<Record<PortProtocol, number>> = { icmp: 1, tcp: 6, udp: 17, icmp6: 58, sctp: 132 };

/** The rules of `policy` under `policyId`. Throws a `RangeError` for a policy that was not compiled by ours. */
export function rulesOf(policy: EffectivePolicy, policyId: number): Rule[] {
  const ranges = (kind: "allow" | "deny", cidrs: readonly string[]): Rule[] =>
    cidrs.map((cidr) => rangeRule(kind, cidr, policyId));
  return [
    ...ranges("allow", policy.allowCidrs),
    ...ranges("deny", policy.denyCidrs),
    ...policy.allowPorts.map(({ protocol, port }) => ({
      map: "fluxvm_ports" as const,
      key: encodePortKey({ policyId, port, protocol: PROTOCOLS[protocol] }),
      value: word(1),
    })),
    ...nameRules("dns", policy.names.dns ?? [], policyId),
    ...nameRules("sni", policy.names.sni ?? [], policyId),
  ];
}

/** The element that puts the rules under `policyId` in force, all at once. */
export function interfaceElement(
  policy: EffectivePolicy,
  policyId: number,
  place: InterfacePlace,
): Uint8Array<ArrayBuffer> {
  const { network } = place;
  const { source } = policy;
  const gateway = network.gateway === null ? null : parseAddress(network.gateway);
  return encodeInterfaceConfig({
    policyId,
    identity: policy.identity,
    flags: flagsOf(policy, network),
    slot: place.slot,
    ctEpoch: place.connectionEpoch,
    ctBuckets: place.connectionBuckets,
    sampleRate: policy.sampleRate,
    phase: place.phase,
    bytesPerSecond: BigInt(policy.bytesPerSecond ?? 0),
    packetsPerSecond: BigInt(policy.packetsPerSecond ?? 0),
    mark: place.mark,
    gateway4: gateway ?? new Uint8Array(4),
    source4: addressOr(source.ipv4 ?? network.guestAddress, 4),
    router4: gateway === null || network.hook !== "routed" ? new Uint8Array(4) : next(gateway),
    source6: addressOr(source.ipv6, 16),
    sourceMac: source.mac === null ? new Uint8Array(6) : parseHardwareAddress(source.mac),
    ifindex: network.hostInterfaceIndex,
    fingerprint: fingerprintWord(policy.fingerprint),
    seal: policyId,
  });
}

/** What of a fingerprint is kept in the kernel: its first 16 digits as a number. */
export function fingerprintWord(fingerprint: string): bigint {
  const digits = fingerprint.slice(0, 16);
  if (!/^[0-9a-f]{1,16}$/.test(digits)) throw new RangeError(`not a fingerprint: ${digits}`);
  return BigInt(`0x${digits.padEnd(16, "0")}`);
}

function flagsOf(policy: EffectivePolicy, network: SandboxNetwork): number {
  return flagBits(INTERFACE_FLAGS, {
    defaultAllow: policy.defaultAllow,
    enforceCidrs: policy.enforceCidrs,
    enforcePorts: policy.enforcePorts,
    allowIcmp: policy.allowIcmp,
    audit: policy.audit,
    denyUdp: policy.denyUdp,
    dnsNames: policy.names.dns !== null,
    sniNames: policy.names.sni !== null,
    antiSpoof: policy.source.antiSpoof,
    learn: policy.source.learn,
    routed: network.hook === "routed",
  });
}

function rangeRule(kind: "allow" | "deny", cidr: string, policyId: number): Rule {
  const { family, prefixLength, bytes } = parseCidr(cidr);
  const fields = { prefixBits: 32 + prefixLength, policyId, address: bytes };
  const isWhole = prefixLength === bytes.length * 8;
  return {
    map: `fluxvm_${kind}${family}`,
    key: family === 4 ? encodeLpm4Key(fields) : encodeLpm6Key(fields),
    value: word(RULE_FLAGS.rule | (isWhole ? RULE_FLAGS.exact : 0)),
  };
}

/** A name and everything below it have one hash, and so one element. */
function nameRules(kind: (typeof NAME_KINDS)[number], patterns: readonly string[], policyId: number): Rule[] {
  const flags = new Map<bigint, number>();
  for (const pattern of patterns) {
    const { hash, match } = namePattern(pattern);
    flags.set(hash, (flags.get(hash) ?? 0) | NAME_FLAGS[match]);
  }
  return [...flags].map(([hash, value]) => ({
    map: "fluxvm_names" as const,
    key: encodeNameKey({ policyId, kind: NAME_KINDS.indexOf(kind), hash }),
    value: word(value),
  }));
}

function flagBits<Name extends string>(
  bits: Readonly<Record<Name, number>>,
  isSet: Readonly<Record<Name, boolean>>,
): number {
  return (Object.keys(bits) as Name[]).reduce((sum, name) => (isSet[name] ? sum | bits[name] : sum), 0);
}

function word(value: number): Uint8Array<ArrayBuffer> {
  return new Uint8Array(new Uint32Array([value]).buffer);
}

function addressOr(text: string | null, bytes: number): Uint8Array {
  return text === null ? new Uint8Array(bytes) : parseAddress(text);
}

/** The address behind this one: the namespace's own, in a block. */
function next(address: Uint8Array): Uint8Array {
  const copy = address.slice();
  copy[3] = ((copy[3] ?? 0) + 1) & 0xff;
  return copy;
}
