// Rules as people type them, one word each, and what they are in a policy.
import type { NetworkPolicy } from "../../sdk/typescript/types.ts";
import { parseAddress } from "../network/address.ts";
import { formatCidr, hostRange, parseCidr } from "../network/cidr.ts";
import { entityOf } from "../network/entities.ts";
import { hostNameOf } from "../network/policy.ts";
import { formatPort, parsePort } from "../network/ports.ts";
import { UsageError } from "./command.ts";

type ListField = "allow_cidrs" | "allow_ports" | "allow_fqdns" | "deny_cidrs" | "entities";
/** One line of a policy. */
export type Rule = { readonly list: ListField; readonly entry: string } | { readonly flag: "deny_udp" };

/** Throws `UsageError`. */
export function parseRule(kind: "allow" | "deny", word: string): Rule {
  return kind === "allow" ? allowRule(word) : denyRule(word);
}

function allowRule(word: string): Rule {
  const range = rangeOf(word);
  if (range !== null) return { list: "allow_cidrs", entry: range };
  const port = parsePort(word);
  if (port !== null) return { list: "allow_ports", entry: formatPort(port) };
  const entity = entityOf(word);
  if (entity !== null) return { list: "entities", entry: entity };
  // A name without a dot has no public address, so it is a port that somebody mistyped.
  const name = word.includes("/") || !word.includes(".") ? null : hostNameOf(word);
  if (name !== null) return { list: "allow_fqdns", entry: name };
  throw new UsageError(`${JSON.stringify(word)} is ${misfit(word)}`);
}

/** What a word that is no rule was meant to be, by its first part, and is not. */
function misfit(word: string): string {
  const [first = "", ...rest] = word.split("/");
  if (parseAddress(first) !== null) return "no range for allow_cidrs: the prefix is 0 to 32, or to 128 for IPv6";
  if (/^(?:tcp|udp|sctp)$/i.test(first)) return "no port for allow_ports: it is 1 to 65535, as in tcp/443";
  if (/^icmp(?:v?6)?$/i.test(first)) return "no port for allow_ports: ICMP has 0 alone, as in icmp/0";
  if (rest.length === 0 && word.includes(".")) return "no host name for allow_fqdns, such as example.org";
  return "no range (10.0.0.0/8), port (tcp/443), host name (example.org) or entity (world)";
}

function denyRule(word: string): Rule {
  const range = rangeOf(word);
  if (range !== null) return { list: "deny_cidrs", entry: range };
  if (word === "udp") return { flag: "deny_udp" };
  throw new UsageError(
    `${JSON.stringify(word)} is no range, and not udp; ports and host names are denied by allowing others`,
  );
}

/** In the form that the agent keeps it in. */
function rangeOf(word: string): string | null {
  const address = parseAddress(word);
  const range = address === null ? parseCidr(word) : hostRange(address);
  return range === null ? null : formatCidr(range);
}

/** The policy with the rule; the same when it has it. */
export function withRule(policy: NetworkPolicy, rule: Rule): NetworkPolicy {
  if ("flag" in rule) return { ...policy, [rule.flag]: true };
  const list = policy[rule.list];
  return list.includes(rule.entry) ? policy : { ...policy, [rule.list]: [...list, rule.entry] };
}

/** The policy without the rule. Throws an `Error` when it has it not. */
export function withoutRule(policy: NetworkPolicy, rule: Rule): NetworkPolicy {
  if ("flag" in rule) return { ...policy, [rule.flag]: false };
  const list = policy[rule.list];
  // Whoever takes away what was never there meant another.
  if (!list.includes(rule.entry)) throw new Error(`${rule.list} has no ${rule.entry}`);
  return { ...policy, [rule.list]: list.filter((entry) => entry !== rule.entry) };
}

/**
 * What is to be said of the host names of a policy that allow nothing, `unresolved` being those without an address that
 * could be allowed; a line each.
 */
export function idleNames(policy: NetworkPolicy, unresolved: readonly string[]): readonly string[] {
  const isPattern = (name: string): boolean => name.includes("*");
  return [
    ...policy.allow_fqdns
      .filter(isPattern)
      .map((name) => `allow_fqdns: ${name} is never resolved and allows nothing; dns_names of the edge takes patterns`),
    ...policy.allow_fqdns
      .filter((name) => !isPattern(name) && unresolved.includes(name))
      .map((name) => `allow_fqdns: ${name} has no public address now, and allows nothing until it has`),
  ];
}

/** What a policy without any list of what is allowed comes to, or null while it has one. */
export function openness({
  allow_cidrs,
  allow_fqdns,
  allow_ports,
  entities,
  default_allow,
}: NetworkPolicy): string | null {
  if ([allow_cidrs, allow_fqdns, allow_ports, entities].some((list) => list.length > 0)) return null;
  return default_allow ? "no list of what is allowed is left, so everything is" : null;
}
