// Ranges of addresses: parsing and the canonical text, containment, the smallest list of ranges that covers the same
// addresses, and a lookup by longest prefix.
import { type Address, type Family, formatAddress, parseAddress, widthOf } from "./address.ts";

/** Host bits are zero. */
export interface Cidr {
  readonly family: Family;
  readonly value: bigint;
  /** Bits that are fixed. */
  readonly prefix: number;
}

const PREFIX = /^(?:0|[1-9]\d{0,2})$/;

/** The range that a text such as `10.1.2.3/8` is, or null. Host bits are masked; the prefix must be there. */
export function parseCidr(text: string): Cidr | null {
  const slash = text.indexOf("/");
  if (slash < 0) return null;
  const address = parseAddress(text.slice(0, slash));
  const digits = text.slice(slash + 1);
  if (address === null || !PREFIX.test(digits) || Number(digits) > widthOf(address.family)) return null;
  return rangeOf(address, Number(digits));
}

/** The range of `prefix` bits that an address is in. */
export function rangeOf({ family, value }: Address, prefix: number): Cidr {
  const hostBits = BigInt(widthOf(family) - prefix);
  return { family, value: (value >> hostBits) << hostBits, prefix };
}

/** One address as a range. */
export const hostRange = (address: Address): Cidr => rangeOf(address, widthOf(address.family));

export const formatCidr = (range: Cidr): string => `${formatAddress(range)}/${range.prefix}`;

/** Whether every address of `inner` is in `outer`. */
export function contains(outer: Cidr, inner: Cidr): boolean {
  if (outer.family !== inner.family || outer.prefix > inner.prefix) return false;
  return rangeOf(inner, outer.prefix).value === outer.value;
}

/** IPv4 first, then by address, then wider ranges first. */
export function compare(a: Cidr, b: Cidr): number {
  if (a.family !== b.family) return a.family - b.family;
  if (a.value !== b.value) return a.value < b.value ? -1 : 1;
  return a.prefix - b.prefix;
}

/** The shortest sorted list of ranges with exactly the addresses of the given ones. */
export function aggregate(ranges: readonly Cidr[]): readonly Cidr[] {
  const merged: Cidr[] = [];
  for (const range of [...ranges].sort(compare)) {
    const last = merged.at(-1);
    if (last !== undefined && contains(last, range)) continue;
    merged.push(range);
    // Two halves that meet are one range, which may be half of a wider one itself.
    for (let whole = joined(merged); whole !== null; whole = joined(merged)) merged.splice(-2, 2, whole);
  }
  return merged;
}

/** The range that the last two are halves of, or null. */
function joined(ranges: readonly Cidr[]): Cidr | null {
  const upper = ranges.at(-1);
  const lower = ranges.at(-2);
  if (upper === undefined || lower === undefined) return null;
  if (lower.family !== upper.family || lower.prefix !== upper.prefix || upper.prefix === 0) return null;
  const whole = rangeOf(upper, upper.prefix - 1);
  return contains(whole, lower) && lower.value !== upper.value ? whole : null;
}

/** Values by range, found by the longest prefix that an address has. */
export class RangeMap<Value> {
  readonly #byPrefix = new Map<string, Value>();
  readonly #prefixes: Readonly<Record<Family, Set<number>>> = { 4: new Set(), 6: new Set() };

  set(range: Cidr, value: Value): void {
    this.#byPrefix.set(formatCidr(range), value);
    this.#prefixes[range.family].add(range.prefix);
  }

  find(address: Address): Value | undefined {
    const prefixes = [...this.#prefixes[address.family]].sort((a, b) => b - a);
    for (const prefix of prefixes) {
      const key = formatCidr(rangeOf(address, prefix));
      if (this.#byPrefix.has(key)) return this.#byPrefix.get(key);
    }
    return undefined;
  }
}
