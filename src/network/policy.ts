// What people declare for a sandbox: the policy object of the wire and of the disk, and what its edge is to check.
// Parsing normalises, so that two texts that mean the same are the same; what is unknown is refused by its field's name.
import { z } from "zod";
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import { parseAddress, formatAddress } from "./address.ts";
import { formatCidr, parseCidr } from "./cidr.ts";
import { entityOf } from "./entities.ts";
import { formatPort, parsePort } from "./ports.ts";

const U32_MAX = 0xffff_ffff;
const SAMPLE_RATE_MAX = 0x7fff_ffff;
/** The program in the kernel compares names up to this length. */
const EDGE_NAME_MAX_CHARS = 128;
const HOST_NAME_MAX_CHARS = 253;
const HOST_LABEL = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;

export const GROUP_NAME = /^[A-Za-z0-9_-]{1,64}$/;
const LABEL = /^[A-Za-z0-9=/.:_-]{1,128}$/;
const MAC = /^[0-9a-f]{2}(?::[0-9a-f]{2}){5}$/;

/** A text that `normal` turns into its one form, or refuses by null. */
const textLike = (expected: string, normal: (text: string) => string | null) =>
  z
    .string()
    .max(1024)
    .transform((text, context) => {
      const value = normal(text);
      if (value !== null) return value;
      context.addIssue({ code: "custom", message: `must be ${expected}` });
      return z.NEVER;
    });

const unique = (values: readonly string[]): string[] => [...new Set(values)];

const listOf = (item: z.ZodType<string>, max: number) => z.array(item).max(max).transform(unique).default([]);

const cidr = textLike("a range such as 10.0.0.0/8 or fd00::/8", (text) => {
  const range = parseCidr(text);
  return range === null ? null : formatCidr(range);
});
const port = textLike("a port such as tcp/443, or icmp/0", (text) => {
  const parsed = parsePort(text);
  return parsed === null ? null : formatPort(parsed);
});
const label = textLike("1 to 128 of A-Z, a-z, 0-9 and =/.:_-", (text) => (LABEL.test(text) ? text : null));
const groupName = textLike("1 to 64 of A-Z, a-z, 0-9, _ and -", (text) => (GROUP_NAME.test(text) ? text : null));
const entity = textLike("an entity, such as world or host", entityOf);
const hostName = textLike("a host name", (text) => hostNameOf(text, HOST_NAME_MAX_CHARS));
const edgeName = textLike("a host name of at most 128 characters, such as example.org or *.example.org", (text) => {
  const name = hostNameOf(text, EDGE_NAME_MAX_CHARS);
  // A star anywhere but in front of everything would be compared as a letter.
  return name === null || name.replace(/^\*\./, "").includes("*") ? null : name;
});
const mac = textLike("a hardware address such as 02:fc:00:00:00:03, of one station", (text) => {
  const lower = text.toLowerCase();
  return MAC.test(lower) && (Number.parseInt(lower.slice(0, 2), 16) & 1) === 0 ? lower : null;
});
const address = (family: 4 | 6) =>
  textLike(`an address of IPv${family}`, (text) => {
    const parsed = parseAddress(text);
    return parsed?.family === family ? formatAddress(parsed) : null;
  });

const rate = z.int().min(1).max(U32_MAX).nullable().default(null);

/** Lower case, without the dot in front or behind; `*` stands for whole labels or parts of them. Null: no host name. */
export function hostNameOf(text: string, maxChars: number = HOST_NAME_MAX_CHARS): string | null {
  const name = text.toLowerCase().replace(/^\./, "").replace(/\.$/, "");
  if (name === "" || name.length > maxChars) return null;
  const isName = name.split(".").every((part) => HOST_LABEL.test(part.replaceAll("*", "a")));
  return isName ? name : null;
}

/** Fields in the order in which they are written. Labels are the sandbox's own for the matching of groups. */
const policySchema = z.strictObject({
  default_allow: z.boolean().default(true),
  allow_cidrs: listOf(cidr, limits.policyListMax),
  allow_ports: listOf(port, limits.policyPortsMax),
  max_egress_mbps: rate,
  max_egress_pps: rate,
  sample_rate: z.int().min(0).max(SAMPLE_RATE_MAX).default(0),
  deny_cidrs: listOf(cidr, limits.policyListMax),
  allow_icmp: z.boolean().default(false),
  groups: listOf(groupName, limits.groupsPerSandboxMax),
  labels: listOf(label, limits.policyLabelsMax),
  allow_fqdns: listOf(hostName, limits.policyNamesMax),
  entities: listOf(entity, limits.policyListMax),
  audit_mode: z.boolean().default(false),
  deny_udp: z.boolean().default(false),
});

/**
 * What the interface itself checks beside the policy. `dns_names` and `sni_names`: names that questions and greetings
 * may have, all when null, none when empty. `anti_spoof` and `learn_ip` are chosen by the kind of network when null:
 * an address that the agent gave out is held to, one that it did not give is learned.
 */
const edgeSchema = z.strictObject({
  anti_spoof: z.boolean().nullable().default(null),
  learn_ip: z.boolean().nullable().default(null),
  mac: mac.nullable().default(null),
  ipv4: address(4).nullable().default(null),
  ipv6: address(6).nullable().default(null),
  dns_names: z.array(edgeName).max(limits.policyNamesMax).transform(unique).nullable().default(null),
  sni_names: z.array(edgeName).max(limits.policyNamesMax).transform(unique).nullable().default(null),
  max_egress_mbps: rate,
  max_egress_pps: rate,
});

export type NetworkPolicy = Readonly<z.output<typeof policySchema>>;
export type NetworkEdge = Readonly<z.output<typeof edgeSchema>>;

/** The labels of a group: sorted, each once. */
const groupLabels = listOf(label, limits.policyLabelsMax).transform((labels) => labels.toSorted());

/**
 * Checks a value of `schema` at a boundary; null counts as absent. Throws `POLICY_INVALID` that names the field, below
 * `at` where the value is a part of something.
 */
export function parseWith<Schema extends z.ZodType>(schema: Schema, value: unknown, at = ""): z.output<Schema> {
  const parsed = schema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const path = [...(at === "" ? [] : [at]), ...(issue?.path ?? [])];
  const unknown = issue?.code === "unrecognized_keys" ? issue.keys[0] : undefined;
  const field = fieldName(unknown === undefined ? path : [...path, unknown]);
  const problem = unknown === undefined ? (issue?.message ?? "is invalid") : "is not a field of this";
  throw invalid(field, problem.charAt(0).toLowerCase() + problem.slice(1));
}

/** `POLICY_INVALID` that names the field. */
export function invalid(field: string, problem: string): AgentError {
  const where = field === "" ? "the policy" : `field ${field}`;
  return new AgentError("POLICY_INVALID", `${where}: ${problem}`, { details: field === "" ? {} : { field } });
}

function fieldName(path: readonly PropertyKey[]): string {
  return path.reduce<string>((name, part) => {
    // What a client chose is shortened, because it goes into a message.
    const text = String(part).slice(0, 64);
    return typeof part === "number" ? `${name}[${text}]` : name === "" ? text : `${name}.${text}`;
  }, "");
}

/** A field of the schema that is null counts as absent. */
function withoutNulls(schema: z.ZodObject, value: unknown): unknown {
  if (typeof value !== "object" || value === null || Array.isArray(value)) return value;
  const isAbsent = ([key, member]: [string, unknown]): boolean => member === null && Object.hasOwn(schema.shape, key);
  return Object.fromEntries(Object.entries(value).filter((entry) => !isAbsent(entry)));
}

/** Throws `POLICY_INVALID`. `at` names the field that the policy is, where it is one. */
export const parsePolicy = (value: unknown, at = ""): NetworkPolicy =>
  parseWith(policySchema, withoutNulls(policySchema, value), at);

/** Throws `POLICY_INVALID`. */
export const parseEdge = (value: unknown): NetworkEdge => parseWith(edgeSchema, withoutNulls(edgeSchema, value));

/**
 * Fields by which an edge says who the guest is, or that nobody is to check it. Where the agent knows that better, and to
 * tenants, they are refused.
 */
export function claimsOf({ anti_spoof, mac, ipv4, ipv6 }: NetworkEdge): readonly string[] {
  const named = Object.entries({ mac, ipv4, ipv6 }).filter(([, value]) => value !== null);
  return [...(anti_spoof === false ? ["anti_spoof"] : []), ...named.map(([field]) => field)];
}

/** Throws `POLICY_INVALID`. */
export const parseGroupLabels = (value: unknown): readonly string[] => parseWith(groupLabels, value, "labels");

/** Nothing passes: for what cannot be read. */
export const DENY_ALL: NetworkPolicy = parsePolicy({ default_allow: false });
