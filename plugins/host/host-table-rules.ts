// The rules of the host's own table, and how agents of different versions on one host tell whose are newer.
import { createHash } from "node:crypto";
import { ALLOWED_MARK, NETWORK_DEVICE_GROUP, NFT_PRIORITY } from "./network-marks.ts";
import type { NftTable } from "./nft.ts";

/**
 * Raised with every change of the rules: of two agents on one host the newer one's hold. What agents of all generations
 * share is the name of the table, its two families, and the set of ports.
 */
export const GENERATION = 2;
export const HOST_TABLE = "fluxvm";
/** In `bridge`: TCP ports of all agents of the host. */
export const AGENT_PORTS = "agent_ports";

/** Addresses that are leased to sandboxes; nobody routes to them. */
const LINK_LOCAL = "169.254.0.0/16";
/** Where a cloud tells a host its secrets: a dataplane lets nobody there who is not allowed exactly this. */
const METADATA = "169.254.169.254";
/**
 * The kernel remembers a number of connections for the whole host; what a sandbox may have of it is counted by some bits of
 * the source port, because each new connection is compared with all that are counted together.
 */
const [SOURCE_PORT_BITS, COUNTED_TOGETHER_MAX] = [127, 128];
/**
 * All sandboxes together leave the host this part of what the kernel remembers. They are counted by shares of a hash with a
 * secret of the kernel's, so that nobody can fill the share of another on purpose.
 */
const [LEFT_TO_HOST, SHARES_MAX] = [2, 65_536];
/**
 * What a sandbox may ask of the server for names, which is one for all and remembers each question until somebody answers it,
 * ten seconds at most, and has a process for each of its twenty connections.
 */
const QUESTIONS = { perSecond: 50, atOnce: 300, connections: 4 } as const;

/** Number of shares for a kernel that remembers so many connections. */
function sharesOf(trackedMax: number): number {
  const shares = Math.floor(trackedMax / LEFT_TO_HOST / COUNTED_TOGETHER_MAX);
  return Math.max(1, Math.min(SHARES_MAX, shares));
}

const FROM_SANDBOX = `iifgroup ${NETWORK_DEVICE_GROUP}`;
const TO_SANDBOX = `oifgroup ${NETWORK_DEVICE_GROUP}`;
const MARK = `0x${ALLOWED_MARK.toString(16)}`;

const SHARE = "jhash ip saddr . th sport";
const COUNTED = `ip saddr . th sport & ${SOURCE_PORT_BITS}`;

const QUESTION_LIMIT = `limit rate over ${QUESTIONS.perSecond}/second burst ${QUESTIONS.atOnce} packets`;

const UNDECIDED = `
  chain undecided {
    type filter hook prerouting priority ${NFT_PRIORITY.undecided}; policy accept;
    ${FROM_SANDBOX} meta mark & ${MARK} == 0 counter drop comment
  }`;

/**
 * `inet`: packets that the host routes, or that are its own; what belongs to no connection would leave with an address that
 * is not the host's. `bridge`: frames of guests on a bridge of the host.
 */
export function hostRules(trackedMax: number): Readonly<Record<"inet" | "bridge", string>> {
  const shares = sharesOf(trackedMax);
  return {
    inet: `
  set connections { type ipv4_addr . inet_service; flags dynamic; size 524288; }
  set all_connections { type mark; flags dynamic; size ${SHARES_MAX}; }
  set questions { type ipv4_addr; flags dynamic,timeout; timeout 1m; size 4096; }
  set name_connections { type ipv4_addr; flags dynamic; size 4096; }${UNDECIDED}
  chain tracked {
    type filter hook prerouting priority ${NFT_PRIORITY.undecided + 1}; policy accept;
    ${FROM_SANDBOX} ip saddr ${LINK_LOCAL} ct state invalid counter drop
    ${FROM_SANDBOX} ct state new add @connections { ${COUNTED} ct count over ${COUNTED_TOGETHER_MAX} } counter drop
    ${FROM_SANDBOX} ct state new add @all_connections { ${SHARE} mod ${shares} ct count over ${COUNTED_TOGETHER_MAX} } counter drop
  }
  chain input {
    type filter hook input priority filter; policy accept;
    ${FROM_SANDBOX} udp dport 53 update @questions { ip saddr ${QUESTION_LIMIT} } counter drop
    ${FROM_SANDBOX} tcp dport 53 ct state new add @name_connections { ip saddr ct count over ${QUESTIONS.connections} } counter drop
    ${FROM_SANDBOX} ct state established,related accept
    ${FROM_SANDBOX} icmp type echo-request accept
    ${FROM_SANDBOX} icmpv6 type echo-request accept
    ${FROM_SANDBOX} icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 accept
    ${FROM_SANDBOX} fib daddr . iif type local meta l4proto { tcp, udp } th dport 53 accept
    ${FROM_SANDBOX} counter drop
  }
  chain forward {
    type filter hook forward priority filter; policy accept;
    ${FROM_SANDBOX} ${TO_SANDBOX} counter drop
    ${FROM_SANDBOX} ip daddr ${LINK_LOCAL} ip daddr != ${METADATA} counter drop
    ${TO_SANDBOX} ct state != { established, related } counter drop
    ${FROM_SANDBOX} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
    ${TO_SANDBOX} tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu
  }
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr ${LINK_LOCAL} meta mark & ${MARK} == ${MARK} oifgroup != ${NETWORK_DEVICE_GROUP} masquerade
  }`,
    bridge: `
  set ${AGENT_PORTS} {
    type inet_service
  }${UNDECIDED}
  chain input {
    type filter hook input priority filter; policy accept;
    ${FROM_SANDBOX} ip daddr 127.0.0.0/8 counter drop
    ${FROM_SANDBOX} ip6 daddr ::1 counter drop
    ${FROM_SANDBOX} tcp dport @${AGENT_PORTS} counter drop
  }`,
  };
}

/** What the first rule of a table says of it. */
export interface TableMark {
  readonly generation: number;
  readonly rules: number;
  readonly digest: string;
}

/** The mark of these rules, as `generation` says it. */
export function markOf(body: string, generation: number): TableMark {
  return { generation, rules: ruleCount(body), digest: createHash("sha256").update(body).digest("hex").slice(0, 16) };
}

const COMMENTED = / comment$/m;
const MARKED = /^fluxvm (\d{1,9}) (\d{1,9}) ([0-9a-f]{16})$/;

/** The rules with their mark. */
export function marked(body: string, { generation, rules, digest }: TableMark): string {
  return body.replace(COMMENTED, ` comment "fluxvm ${generation} ${rules} ${digest}"`);
}

/** The mark of a table that is there; null: it has none, or not the rules that it was made with. */
export function foundMark({ rules }: NftTable): TableMark | null {
  const found = rules.flatMap(({ comment }) => MARKED.exec(comment ?? "") ?? []);
  const [, generation, count, digest = ""] = found;
  return Number(count) === rules.length ? { generation: Number(generation), rules: rules.length, digest } : null;
}

function ruleCount(body: string): number {
  return body.split("\n").filter((line) => line.startsWith("    ") && !line.startsWith("    type ")).length;
}
