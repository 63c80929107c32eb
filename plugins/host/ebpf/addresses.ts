// Addresses and ranges between text and the bytes that maps have: 4 or 16, in network order.

export type Family = 4 | 6;

export interface Cidr {
  readonly family: Family;
  readonly prefixLength: number;
  /** 4 or 16; bits behind the prefix are zero. */
  readonly bytes: Uint8Array;
}

const BYTES: Readonly<Record<Family, number>> = { 4: 4, 6: 16 };

/** Reads `10.0.0.0/8` or `fd00::/8`. Throws a `RangeError` that names the text when it is neither. */
export function parseCidr(text: string): Cidr {
  const [address = "", length = "", ...rest] = text.split("/");
  const bytes = addressBytes(address);
  const prefixLength = /^\d{1,3}$/.test(length) ? Number(length) : Number.NaN;
  if (bytes === null || rest.length > 0 || !(prefixLength <= bytes.length * 8)) {
    throw new RangeError(`not a range of addresses: ${text.slice(0, 64)}`);
  }
  return { family: bytes.length === 4 ? 4 : 6, prefixLength, bytes: masked(bytes, prefixLength) };
}

/** Reads one address. Throws a `RangeError` that names the text when it is none. */
export function parseAddress(text: string): Uint8Array {
  const bytes = addressBytes(text);
  if (bytes === null) throw new RangeError(`not an address: ${text.slice(0, 64)}`);
  return bytes;
}

/** Reads `aa:bb:cc:dd:ee:ff`. Throws a `RangeError` that names the text when it is none. */
export function parseHardwareAddress(text: string): Uint8Array {
  if (!/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/i.test(text)) {
    throw new RangeError(`not a hardware address: ${text.slice(0, 64)}`);
  }
  return Uint8Array.from(text.split(":"), (part) => Number.parseInt(part, 16));
}

/** The usual text of the first 4 or 16 bytes: IPv6 in lower case, the longest run of zero groups shortened. */
export function formatAddress(family: Family, bytes: Uint8Array): string {
  if (family === 4) return bytes.subarray(0, 4).join(".");
  const groups = Array.from({ length: 8 }, (_, at) => ((bytes[2 * at] ?? 0) << 8) | (bytes[2 * at + 1] ?? 0));
  const run = longestZeroRun(groups);
  const text = (part: readonly number[]): string => part.map((group) => group.toString(16)).join(":");
  return run.length < 2 ? text(groups) : `${text(groups.slice(0, run.at))}::${text(groups.slice(run.at + run.length))}`;
}

function addressBytes(text: string): Uint8Array | null {
  return text.includes(":") ? ipv6Bytes(text) : ipv4Bytes(text);
}

function ipv4Bytes(text: string): Uint8Array | null {
  const parts = text.split(".");
  if (parts.length !== 4 || !parts.every((part) => /^(0|[1-9]\d{0,2})$/.test(part) && Number(part) <= 255)) return null;
  return Uint8Array.from(parts, Number);
}

function ipv6Bytes(text: string): Uint8Array | null {
  if (text.length > 45) return null;
  const halves = text.split("::");
  if (halves.length > 2) return null;
  const [front, back] = halves.map(ipv6Groups);
  if (front === undefined || front === null || back === null) return null;
  const zeros = 8 - front.length - (back?.length ?? 0);
  if (back === undefined ? zeros !== 0 : zeros < 1) return null;
  const groups = [...front, ...Array<number>(zeros).fill(0), ...(back ?? [])];
  return Uint8Array.from(groups.flatMap((group) => [group >> 8, group & 0xff]));
}

/** The groups of one side of `::`; the last may be two groups in dotted form. */
function ipv6Groups(text: string): number[] | null {
  if (text === "") return [];
  const groups: number[] = [];
  const parts = text.split(":");
  for (const [at, part] of parts.entries()) {
    const dotted = at === parts.length - 1 && part.includes(".") ? ipv4Bytes(part) : null;
    if (dotted !== null) {
      const [a = 0, b = 0, c = 0, d = 0] = dotted;
      groups.push((a << 8) | b, (c << 8) | d);
    } else if (/^[0-9a-f]{1,4}$/i.test(part)) groups.push(Number.parseInt(part, 16));
    else return null;
  }
  return groups;
}

function masked(bytes: Uint8Array, prefixLength: number): Uint8Array {
  return bytes.map((byte, at) => byte & (0xff00 >> Math.min(8, Math.max(0, prefixLength - at * 8))) & 0xff);
}

function longestZeroRun(groups: readonly number[]): { at: number; length: number } {
  let best = { at: 0, length: 0 };
  for (let at = 0; at < groups.length; at++) {
    let length = 0;
    while (groups[at + length] === 0) length += 1;
    if (length > best.length) best = { at, length };
    at += length;
  }
  return best;
}

/** `bytes` with zeros behind it, up to the room that both families have in a map. */
export function inRoom(bytes: Uint8Array): Uint8Array {
  const room = new Uint8Array(BYTES[6]);
  room.set(bytes.subarray(0, BYTES[6]));
  return room;
}
