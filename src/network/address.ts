// Addresses of IPv4 and IPv6 as numbers, and their one canonical text: dotted decimal, and RFC 5952 for IPv6.

export type Family = 4 | 6;

export interface Address {
  readonly family: Family;
  readonly value: bigint;
}

const OCTET = /^(?:0|[1-9]\d{0,2})$/;
const GROUP = /^[0-9a-fA-F]{1,4}$/;
const TEXT_MAX_CHARS = 45;
const V4_MAPPED = 0xffffn;

/** Bits of an address: 32 or 128. */
export const widthOf = (family: Family): number => (family === 4 ? 32 : 128);

/** The address that a text is, or null. Leading zeros, zones and one-part IPv4 forms are no addresses. */
export function parseAddress(text: string): Address | null {
  if (text.length > TEXT_MAX_CHARS) return null;
  const value = text.includes(":") ? parseV6(text) : parseV4(text);
  return value === null ? null : { family: text.includes(":") ? 6 : 4, value };
}

function parseV4(text: string): bigint | null {
  const octets = text.split(".");
  if (octets.length !== 4 || !octets.every((octet) => OCTET.test(octet) && Number(octet) <= 255)) return null;
  return octets.reduce((value, octet) => (value << 8n) | BigInt(octet), 0n);
}

function parseV6(text: string): bigint | null {
  const halves = text.split("::");
  if (halves.length > 2) return null;
  const groups = halves.map((half, at) => groupsOf(half, at === halves.length - 1));
  const [head, tail] = groups;
  if (head === undefined || head === null || tail === null) return null;
  const missing = 8 - head.length - (tail?.length ?? 0);
  // `::` stands for one group at least.
  if (tail === undefined ? missing !== 0 : missing < 1) return null;
  const all = [...head, ...Array.from({ length: missing }, () => 0), ...(tail ?? [])];
  return all.reduce((value, group) => (value << 16n) | BigInt(group), 0n);
}

/** The 16-bit groups of a part of an address, whose end may be dotted decimal where it is the address's end. */
function groupsOf(part: string, isLast: boolean): number[] | null {
  if (part === "") return [];
  const groups: number[] = [];
  const pieces = part.split(":");
  for (const [at, piece] of pieces.entries()) {
    if (GROUP.test(piece)) {
      groups.push(Number.parseInt(piece, 16));
      continue;
    }
    const embedded = isLast && at === pieces.length - 1 ? parseV4(piece) : null;
    if (embedded === null) return null;
    groups.push(Number(embedded >> 16n), Number(embedded & 0xffffn));
  }
  return groups;
}

/** The canonical text. */
export function formatAddress({ family, value }: Address): string {
  if (family === 4) return [24n, 16n, 8n, 0n].map((shift) => (value >> shift) & 0xffn).join(".");
  const groups = Array.from({ length: 8 }, (_, at) => Number((value >> BigInt(112 - 16 * at)) & 0xffffn));
  const { start, length } = longestZeros(groups);
  const text = (from: number, to: number): string =>
    groups
      .slice(from, to)
      .map((group) => group.toString(16))
      .join(":");
  return length < 2 ? text(0, 8) : `${text(0, start)}::${text(start + length, 8)}`;
}

function longestZeros(groups: readonly number[]): { start: number; length: number } {
  let longest = { start: 0, length: 0 };
  for (let start = 0; start < groups.length; start += 1) {
    let length = 0;
    while (groups[start + length] === 0) length += 1;
    if (length > longest.length) longest = { start, length };
  }
  return longest;
}

/** The IPv4 address that an IPv4-mapped IPv6 address stands for; any other address is itself. */
export function unmapped(address: Address): Address {
  const isMapped = address.family === 6 && address.value >> 32n === V4_MAPPED;
  return isMapped ? { family: 4, value: address.value & 0xffff_ffffn } : address;
}
