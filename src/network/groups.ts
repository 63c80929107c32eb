// Groups: policies that several sandboxes have in common, by name or by labels, and how several policies are one.
import { z } from "zod";
import { limits } from "../config/limits.ts";
import { GROUP_IDENTITY_MAX, GROUP_IDENTITY_MIN, groupIdentity } from "./identities.ts";
import { GROUP_NAME, invalid, type NetworkPolicy, parseGroupLabels, parsePolicy, parseWith } from "./policy.ts";

const I32_MAX = 0x7fff_ffff;

const groupSchema = z.strictObject({
  name: z.string().regex(GROUP_NAME, "must be 1 to 64 of A-Z, a-z, 0-9, _ and -"),
  labels: z.unknown().optional(),
  policy: z.unknown().optional(),
  identity: z.int().min(GROUP_IDENTITY_MIN).max(GROUP_IDENTITY_MAX).nullish(),
  priority: z.int().min(-I32_MAX).max(I32_MAX).nullish(),
  description: z.string().max(1024).nullish(),
});

/** As on the wire and on the disk. */
export interface NetworkGroup {
  readonly name: string;
  /** Sorted, each once. */
  readonly labels: readonly string[];
  readonly policy: NetworkPolicy;
  readonly identity: number;
  /** Lower ones come first where a list shows them. */
  readonly priority: number;
  readonly description: string | null;
}

/**
 * A group from what a client or a file says. The identity that it names is kept; else the identity of its labels, which
 * another group with the same labels has as well. Throws `POLICY_INVALID`.
 */
export function parseGroup(value: unknown, others: readonly NetworkGroup[]): NetworkGroup {
  const { name, identity, priority, description, ...parts } = parseWith(groupSchema, value);
  const labels = parseGroupLabels(parts.labels ?? []);
  const policy = parsePolicy(parts.policy ?? {}, "policy");
  const [inside] = (["groups", "labels"] as const).filter((field) => policy[field].length > 0);
  if (inside !== undefined) throw invalid(`policy.${inside}`, "a group has none");
  const same = others.find((other) => other.name !== name && sameTexts(other.labels, labels) && labels.length > 0);
  const isTaken = (wanted: number): boolean =>
    others.some((other) => other.name !== name && other.identity === wanted && other !== same);
  if (identity !== undefined && identity !== null && isTaken(identity)) {
    throw invalid("identity", "another group has this identity");
  }
  return {
    name,
    labels,
    policy,
    identity: identity ?? same?.identity ?? groupIdentity(name, labels, isTaken),
    priority: priority ?? 0,
    description: description ?? null,
  };
}

function sameTexts(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, at) => text === b[at]);
}

/** By priority, then name. */
export function inOrder(groups: readonly NetworkGroup[]): readonly NetworkGroup[] {
  return groups.toSorted((a, b) => a.priority - b.priority || (a.name < b.name ? -1 : 1));
}

/**
 * The groups of a policy: those it names, and those whose labels, if they have any, it all has. Throws
 * `POLICY_INVALID` for more than `limits.groupsPerSandboxMax`, because one left out could be the one that denies.
 */
export function matchGroups(policy: NetworkPolicy, groups: readonly NetworkGroup[]): readonly NetworkGroup[] {
  const names = new Set(policy.groups);
  const labels = new Set(policy.labels);
  const matched = groups.filter(
    (group) =>
      names.has(group.name) || (group.labels.length > 0 && group.labels.every((groupLabel) => labels.has(groupLabel))),
  );
  if (matched.length > limits.groupsPerSandboxMax) {
    const list = inOrder(matched)
      .map(({ name }) => name)
      .join(", ");
    throw invalid("groups", `at most ${limits.groupsPerSandboxMax} groups apply to a sandbox, not ${list}`);
  }
  return inOrder(matched);
}

/**
 * One policy of several: what any allows or denies, the least of the rates, the most of the sampling; one that denies
 * by default makes all deny by default. Groups and labels are those of the first.
 */
export function mergePolicies(declared: NetworkPolicy, groups: readonly NetworkGroup[]): NetworkPolicy {
  return groups.reduce<NetworkPolicy>((merged, { policy }) => merge(merged, policy), declared);
}

function merge(a: NetworkPolicy, b: NetworkPolicy): NetworkPolicy {
  const union = (field: "allow_cidrs" | "allow_ports" | "deny_cidrs" | "allow_fqdns" | "entities"): string[] => [
    ...new Set([...a[field], ...b[field]]),
  ];
  return {
    default_allow: a.default_allow && b.default_allow,
    allow_cidrs: union("allow_cidrs"),
    allow_ports: union("allow_ports"),
    max_egress_mbps: least(a.max_egress_mbps, b.max_egress_mbps),
    max_egress_pps: least(a.max_egress_pps, b.max_egress_pps),
    sample_rate: Math.max(a.sample_rate, b.sample_rate),
    deny_cidrs: union("deny_cidrs"),
    allow_icmp: a.allow_icmp || b.allow_icmp,
    groups: a.groups,
    labels: a.labels,
    allow_fqdns: union("allow_fqdns"),
    entities: union("entities"),
    audit_mode: a.audit_mode || b.audit_mode,
    deny_udp: a.deny_udp || b.deny_udp,
  };
}

/** The lesser of two bounds; null is none. */
export function least(a: number | null, b: number | null): number | null {
  if (a === null || b === null) return a ?? b;
  return Math.min(a, b);
}
