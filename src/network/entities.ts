// Entities: words for groups of addresses, and the identities that are reserved for what is no sandbox.
import { type Address, widthOf } from "./address.ts";
import { type Cidr, contains, hostRange, parseCidr } from "./cidr.ts";

const PRIVATE = ["10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fd00::/8"] as const;

const RANGES: Readonly<Record<string, readonly string[]>> = {
  world: ["0.0.0.0/0", "::/0"],
  "world-ipv4": ["0.0.0.0/0"],
  "world-ipv6": ["::/0"],
  host: ["127.0.0.0/8", "169.254.0.0/16", "fe80::/10"],
  cluster: PRIVATE,
  "remote-node": PRIVATE,
  unmanaged: PRIVATE,
  health: [],
  init: [],
  "kube-apiserver": [],
  ingress: [],
};

/** Where clouds tell a host its secrets, to whoever asks. */
export const METADATA: readonly string[] = ["169.254.169.254/32", "fd00:ec2::254/128"];

/** Identities below this are nobody's but the reserved ones'. */
export const RESERVED_IDENTITIES: ReadonlyMap<number, string> = new Map([
  [0, "unknown"],
  [1, "host"],
  [2, "world"],
  [3, "unmanaged"],
  [4, "health"],
  [5, "init"],
  [6, "remote-node"],
  [7, "kube-apiserver"],
  [8, "ingress"],
  [19, "world-ipv4"],
  [20, "world-ipv6"],
]);

/** The word without `reserved:`, or null where it is no entity. */
export function entityOf(word: string): string | null {
  const name = word.startsWith("reserved:") ? word.slice("reserved:".length) : word;
  return Object.hasOwn(RANGES, name) ? name : null;
}

/** The ranges of an entity that `entityOf` answered; some have none, and then nothing is allowed by them. */
export function entityRanges(entity: string): readonly Cidr[] {
  return rangesOf(RANGES[entity] ?? []);
}

const NOT_PUBLIC = rangesOf([
  "0.0.0.0/8",
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "169.254.0.0/16",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
  "224.0.0.0/4",
  "240.0.0.0/4",
  "::/128",
  "::1/128",
  "64:ff9b:1::/48",
  "fc00::/7",
  "fe80::/10",
  "fec0::/10",
  "ff00::/8",
]);

/** Addresses of IPv6 from which the way leads to one of IPv4, whose bits follow: mapped, NAT64, 6to4. */
const LEADING_TO_IPV4 = rangesOf(["::ffff:0:0/96", "64:ff9b::/96", "2002::/16"]);

/** Whether an address, also one of IPv4 that one of IPv6 leads to, is one of the public internet. */
export function isPublic(address: Address): boolean {
  const host = hostRange(address);
  if (NOT_PUBLIC.some((range) => contains(range, host))) return false;
  const leading = LEADING_TO_IPV4.find((range) => contains(range, host));
  if (leading === undefined) return true;
  const bitsBehind = BigInt(widthOf(6) - leading.prefix - widthOf(4));
  return isPublic({ family: 4, value: (address.value >> bitsBehind) & 0xffff_ffffn });
}

function rangesOf(texts: readonly string[]): readonly Cidr[] {
  return texts.map((text) => {
    const range = parseCidr(text);
    if (range === null) throw new Error(`not a range: ${text}`);
    return range;
  });
}
