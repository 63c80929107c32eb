// Compiling: what is declared, the groups that apply, the edge and the network of a sandbox become one policy in which
// nothing is left to decide but packets. What was declared is enforced also where it turned out to be nothing: a host
// name without an address allows no address, it does not lift the restriction.
import type { EffectivePolicy, GuestSource } from "../contracts/network-policy.ts";
import type { SandboxNetwork } from "../contracts/network.ts";
import { limits } from "../config/limits.ts";
import type { Address } from "./address.ts";
import { aggregate, type Cidr, compare, formatCidr, hostRange, parseCidr } from "./cidr.ts";
import { entityRanges, METADATA } from "./entities.ts";
import { least, mergePolicies, type NetworkGroup } from "./groups.ts";
import { invalid, type NetworkEdge, type NetworkPolicy } from "./policy.ts";
import { parsePort, uniquePorts } from "./ports.ts";

const BYTES_PER_MEGABIT = 1_000_000 / 8;
const FINGERPRINT_CHARS = 32;

export interface Declaration {
  readonly identity: number;
  readonly policy: NetworkPolicy;
  /** Those that match the policy. */
  readonly groups: readonly NetworkGroup[];
  readonly edge: NetworkEdge;
  /** Null while the sandbox has no network of the host's. */
  readonly network: SandboxNetwork | null;
  /** Addresses that a host name is known to have; none where it is not resolved. */
  readonly addressesOf: (name: string) => readonly Address[];
}

/** Throws `POLICY_INVALID` where all of it together is more than a dataplane takes. */
export function compile(declaration: Declaration): EffectivePolicy {
  const { policy: declared, groups, edge, identity, network, addressesOf } = declaration;
  const policy = mergePolicies(declared, groups);
  const named = policy.allow_fqdns.flatMap((name) => addressesOf(name).map(hostRange));
  const open = aggregate([...policy.allow_cidrs.map(rangeOfText), ...policy.entities.flatMap(entityRanges), ...named]);
  const allowed = withMetadata(open, policy.allow_cidrs);
  const denied = aggregate(policy.deny_cidrs.map(rangeOfText));
  bounded("allow_cidrs", allowed.length + denied.length, limits.policyRangesMax, "ranges");
  bounded("allow_ports", policy.allow_ports.length, limits.policyPortsMax, "ports");
  const mbps = least(policy.max_egress_mbps, edge.max_egress_mbps);
  const compiled = {
    identity,
    defaultAllow: policy.default_allow,
    enforceCidrs: policy.allow_cidrs.length + policy.entities.length + policy.allow_fqdns.length > 0,
    enforcePorts: policy.allow_ports.length > 0,
    allowCidrs: allowed.map(formatCidr),
    denyCidrs: denied.map(formatCidr),
    allowPorts: uniquePorts(policy.allow_ports.map((text) => parsePort(text)!)),
    bytesPerSecond: mbps === null ? null : mbps * BYTES_PER_MEGABIT,
    packetsPerSecond: least(policy.max_egress_pps, edge.max_egress_pps),
    sampleRate: policy.sample_rate,
    allowIcmp: policy.allow_icmp,
    audit: policy.audit_mode,
    denyUdp: policy.deny_udp,
    names: { dns: edge.dns_names?.toSorted() ?? null, sni: edge.sni_names?.toSorted() ?? null },
    source: sourceOf(edge, network),
    nativeOnly: nativeOnly(policy, groups, edge, allowed, denied),
  };
  return { ...compiled, fingerprint: fingerprintOf(compiled) };
}

/**
 * An address of metadata is allowed by nothing but a range of that one address, which must not vanish in a wider one.
 */
function withMetadata(open: readonly Cidr[], declared: readonly string[]): readonly Cidr[] {
  const there = new Set(open.map(formatCidr));
  const own = METADATA.filter((text) => declared.includes(text) && !there.has(text));
  return [...open, ...own.map(rangeOfText)].sort(compare);
}

/** Digest of a compiled policy, in hexadecimal; equal ones decide every packet alike. */
function fingerprintOf(compiled: Omit<EffectivePolicy, "fingerprint">): string {
  const digest = new Bun.CryptoHasher("sha256").update(JSON.stringify(compiled)).digest("hex");
  return digest.slice(0, FINGERPRINT_CHARS);
}

function rangeOfText(text: string): Cidr {
  const range = parseCidr(text);
  if (range === null) throw new Error(`a parsed policy has a range that is none: ${text}`);
  return range;
}

function bounded(field: string, count: number, max: number, what: string): void {
  if (count > max) throw invalid(field, `with its groups and names this is ${count} ${what}; at most ${max}`);
}

/** The agent itself gave the sandbox its address, in a namespace of its own. */
export function hasLeasedAddress(network: SandboxNetwork | null): boolean {
  return network !== null && network.namespace !== null && network.guestAddress !== null;
}

/**
 * An address that the agent itself gave is held to, whatever the edge says: it may have been declared before there was a
 * network. One on an operator's bridge is learned, or as the edge has it.
 */
function sourceOf(edge: NetworkEdge, network: SandboxNetwork | null): GuestSource {
  if (network !== null && hasLeasedAddress(network)) {
    const { mac, guestAddress: ipv4 } = network;
    return { antiSpoof: true, learn: edge.learn_ip ?? false, mac, ipv4, ipv6: null };
  }
  const isUnknown = network !== null && network.hook === "bridged" && network.guestAddress === null;
  return {
    antiSpoof: edge.anti_spoof ?? false,
    learn: edge.learn_ip ?? isUnknown,
    mac: edge.mac ?? network?.mac ?? null,
    ipv4: edge.ipv4 ?? network?.guestAddress ?? null,
    ipv6: edge.ipv6,
  };
}

/** Fields of the declaration that nftables cannot enforce. */
function nativeOnly(
  policy: NetworkPolicy,
  groups: readonly NetworkGroup[],
  edge: NetworkEdge,
  allowed: readonly Cidr[],
  denied: readonly Cidr[],
): readonly string[] {
  const others = policy.allow_ports.filter((text) => !/^(?:tcp|udp)\//.test(text));
  const found: Readonly<Record<string, boolean>> = {
    allow_cidrs: [...allowed, ...denied].some(({ family }) => family === 6),
    allow_ports: others.length > 0,
    max_egress_mbps: policy.max_egress_mbps !== null || edge.max_egress_mbps !== null,
    max_egress_pps: policy.max_egress_pps !== null || edge.max_egress_pps !== null,
    deny_cidrs: denied.length > 0,
    allow_icmp: policy.allow_icmp,
    groups: groups.length > 0,
    allow_fqdns: policy.allow_fqdns.length > 0,
    audit_mode: policy.audit_mode,
    deny_udp: policy.deny_udp,
    anti_spoof: edge.anti_spoof === true,
    learn_ip: edge.learn_ip === true,
    dns_names: edge.dns_names !== null,
    sni_names: edge.sni_names !== null,
  };
  return Object.keys(found).filter((field) => found[field]);
}
