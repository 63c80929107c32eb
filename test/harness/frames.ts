// Frames as bytes and back, for the packet laboratory: Ethernet, IPv4, IPv6, UDP, TCP and ICMP, with right checksums, and
// as wrong as a test wants them. Ports and addresses of what arrived are read from the bytes alone.

export const ETHERTYPE = { ipv4: 0x0800, arp: 0x0806, vlan: 0x8100, ipv6: 0x86dd, experiment: 0x88b5 } as const;
export const PROTOCOL = { icmp: 1, tcp: 6, udp: 17, icmp6: 58, sctp: 132 } as const;
export const TCP = { fin: 1, syn: 2, rst: 4, push: 8, ack: 16 } as const;

const ETHERNET_BYTES = 14;
const IPV4_BYTES = 20;
const IPV6_BYTES = 40;
/** Where the checksum lies in the header of each protocol that sums its addresses, too. */
const CHECKSUM_AT: Readonly<Record<number, number>> = {
  [PROTOCOL.tcp]: 16,
  [PROTOCOL.udp]: 6,
  [PROTOCOL.icmp6]: 2,
};

export interface Internet {
  readonly source: string;
  readonly destination: string;
  readonly protocol: number;
  /** Time to live or hop limit; 64 unless said. */
  readonly hops?: number;
  /** IPv4: offset in bytes and whether more follow. */
  readonly fragment?: { readonly offset: number; readonly more: boolean };
  /** IPv6: headers between the first and the protocol's own, as `[type, bytes after its first byte]`. */
  readonly extensions?: readonly (readonly [type: number, rest: Uint8Array])[];
}

/** What a frame that arrived says. Ports are null where there are none to read. */
export interface Reading {
  readonly ethertype: number;
  readonly source: string | null;
  readonly destination: string | null;
  readonly protocol: number | null;
  readonly sourcePort: number | null;
  readonly destinationPort: number | null;
  readonly tcpFlags: number | null;
  readonly icmpType: number | null;
  /** Of the whole frame. */
  readonly bytes: number;
}

export function ethernet(to: string, from: string, type: number, payload: Uint8Array): Uint8Array {
  return joined(macBytes(to), macBytes(from), uint16(type), payload);
}

/** An IPv4 or IPv6 packet by the form of its addresses; the checksum of `payload`, if its protocol has one, is set. */
export function internet(head: Internet, payload: Uint8Array): Uint8Array {
  const [source, destination] = [addressBytes(head.source), addressBytes(head.destination)];
  const body = Uint8Array.from(payload);
  const at = CHECKSUM_AT[head.protocol];
  if (at !== undefined && body.length >= at + 2 && (head.fragment?.offset ?? 0) === 0) {
    body.set([0, 0], at);
    const pseudo = joined(source, destination, uint16(body.length), uint16(head.protocol));
    const sum = checksumOf(joined(pseudo, body));
    body.set(uint16(sum === 0 ? 0xffff : sum), at);
  }
  if (source.length === 16) return internet6(head, source, destination, body);
  const { offset, more } = head.fragment ?? { offset: 0, more: false };
  const header = joined(
    [0x45, 0],
    uint16(IPV4_BYTES + body.length),
    uint16(0x1234),
    uint16((more ? 0x2000 : 0) | (offset >> 3)),
    [head.hops ?? 64, head.protocol, 0, 0],
    source,
    destination,
  );
  header.set(uint16(checksumOf(header)), 10);
  return joined(header, body);
}

function internet6(head: Internet, source: Uint8Array, destination: Uint8Array, body: Uint8Array): Uint8Array {
  const extensions = head.extensions ?? [];
  const types = [...extensions.map(([type]) => type), head.protocol];
  const between = extensions.map(([, rest], index) => joined([types[index + 1] ?? head.protocol], rest));
  const inner = joined(...between, body);
  return joined([0x60, 0, 0, 0], uint16(inner.length), [types[0] ?? 0, head.hops ?? 64], source, destination, inner);
}

export function udp(sourcePort: number, destinationPort: number, payload: Uint8Array | string = "lab"): Uint8Array {
  const body = bytesOf(payload);
  return joined(uint16(sourcePort), uint16(destinationPort), uint16(8 + body.length), [0, 0], body);
}

/** Flags as the sum of `TCP`. */
export function tcp(
  sourcePort: number,
  destinationPort: number,
  flags: number,
  payload: Uint8Array | string = "",
): Uint8Array {
  const numbers = [0, 0, 0, 1, 0, 0, 0, flags & TCP.ack ? 1 : 0];
  const window = uint16(0xffff);
  return joined(
    uint16(sourcePort),
    uint16(destinationPort),
    numbers,
    [0x50, flags],
    window,
    [0, 0, 0, 0],
    bytesOf(payload),
  );
}

/** An ICMP or ICMPv6 message of `type`; ICMP's own checksum is set here, that of ICMPv6 by `internet`. */
export function icmp(type: number, rest: Uint8Array | string = "lablablab"): Uint8Array {
  const message = joined([type, 0, 0, 0], bytesOf(rest));
  message.set(uint16(checksumOf(message)), 2);
  return message;
}

export function read(frame: Uint8Array): Reading {
  const ethertype = word(frame, 12);
  const nothing: Reading = {
    ethertype,
    source: null,
    destination: null,
    protocol: null,
    sourcePort: null,
    destinationPort: null,
    tcpFlags: null,
    icmpType: null,
    bytes: frame.length,
  };
  const is4 = ethertype === ETHERTYPE.ipv4;
  if (!is4 && ethertype !== ETHERTYPE.ipv6) return nothing;
  const at = ETHERNET_BYTES + (is4 ? ((frame[ETHERNET_BYTES] ?? 0) & 15) * 4 : IPV6_BYTES);
  const protocol = frame[ETHERNET_BYTES + (is4 ? 9 : 6)] ?? 0;
  const [from, size] = is4 ? [ETHERNET_BYTES + 12, 4] : [ETHERNET_BYTES + 8, 16];
  const ported = [PROTOCOL.tcp, PROTOCOL.udp, PROTOCOL.sctp].includes(protocol as 6) && frame.length >= at + 4;
  return {
    ...nothing,
    source: addressText(frame.subarray(from, from + size)),
    destination: addressText(frame.subarray(from + size, from + 2 * size)),
    protocol,
    sourcePort: ported ? word(frame, at) : null,
    destinationPort: ported ? word(frame, at + 2) : null,
    tcpFlags: protocol === PROTOCOL.tcp ? (frame[at + 13] ?? null) : null,
    icmpType: protocol === PROTOCOL.icmp || protocol === PROTOCOL.icmp6 ? (frame[at] ?? null) : null,
  };
}

export function addressBytes(text: string): Uint8Array {
  if (!text.includes(":")) return Uint8Array.from(text.split(".").map(Number));
  const [head = "", tail] = text.split("::");
  const groups = (part: string) => (part === "" ? [] : part.split(":").map((group) => Number.parseInt(group, 16)));
  const [left, right] = [groups(head), groups(tail ?? "")];
  const all = [...left, ...Array.from({ length: 8 - left.length - right.length }, () => 0), ...right];
  return joined(...all.map(uint16));
}

/** IPv6 without a run of zeros taken out: two texts of one address are the same. */
function addressText(bytes: Uint8Array): string {
  if (bytes.length === 4) return bytes.join(".");
  return Array.from({ length: 8 }, (_, index) => word(bytes, index * 2).toString(16)).join(":");
}

export function macBytes(text: string): Uint8Array {
  return Uint8Array.from(text.split(":").map((pair) => Number.parseInt(pair, 16)));
}

export function joined(...parts: readonly ArrayLike<number>[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function uint16(value: number): Uint8Array {
  return Uint8Array.of(value >> 8, value & 0xff);
}

function bytesOf(payload: Uint8Array | string): Uint8Array {
  return typeof payload === "string" ? new TextEncoder().encode(payload) : payload;
}

function word(bytes: Uint8Array, at: number): number {
  return ((bytes[at] ?? 0) << 8) | (bytes[at + 1] ?? 0);
}

/** 0 over what holds its own checksum, when that is right. */
export function checksumOf(bytes: Uint8Array): number {
  let sum = 0;
  for (let at = 0; at < bytes.length; at += 2) sum += word(bytes, at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff;
}
