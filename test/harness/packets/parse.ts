// The model's own reading of a frame, from what `native/bpf/README.md` says about lengths and headers. It shares nothing
// with the programs in the kernel.

export interface ModelPacket {
  readonly kind: "arp" | "other" | "ip";
  readonly ethertype: number;
  readonly frame: Uint8Array;
  readonly family: 0 | 4 | 6;
  protocol: number;
  /** 4 or 16 bytes; empty of what is not IP. */
  readonly source: Uint8Array;
  readonly destination: Uint8Array;
  readonly hops: number;
  sourcePort: number;
  destinationPort: number;
  malformed: boolean;
  fragment: boolean;
  /** A SYN without ACK, or an SCTP packet with verification tag 0. */
  begins: boolean;
  icmpType: number;
  icmpCode: number;
  /** What TCP, UDP or SCTP carries, and where it begins in the frame. Null of anything else. */
  payload: Uint8Array | null;
  payloadAt: number;
}

const ETHERNET = 14;
const BASE6 = 40;
const IP4 = 0x0800;
const ARP = 0x0806;
const IP6 = 0x86dd;
export const ICMP = 1;
export const TCP = 6;
export const UDP = 17;
export const ICMP6 = 58;
export const SCTP = 132;
const FRAGMENT = 44;
const AUTHENTICATION = 51;
const ROUTING = 43;
const EXTENSIONS = new Set([0, ROUTING, FRAGMENT, AUTHENTICATION, 60]);

export function u16(bytes: Uint8Array, at: number): number {
  return ((bytes[at] ?? 0) << 8) | (bytes[at + 1] ?? 0);
}

/** Null: neither Ethernet nor a whole IP header, so nothing that could be written down. */
export function parseFrame(frame: Uint8Array): ModelPacket | null {
  if (frame.length < ETHERNET) return null;
  const ethertype = u16(frame, 12);
  if (ethertype === IP4) return parse4(frame);
  if (ethertype === IP6) return parse6(frame);
  const packet = blank(frame, ethertype === ARP ? "arp" : "other", 0);
  packet.destinationPort = ethertype;
  return packet;
}

function blank(frame: Uint8Array, kind: ModelPacket["kind"], family: 0 | 4 | 6): ModelPacket {
  const none = new Uint8Array(0);
  const ip = frame.subarray(ETHERNET);
  const source = family === 0 ? none : family === 4 ? ip.subarray(12, 16) : ip.subarray(8, 24);
  const destination = family === 0 ? none : family === 4 ? ip.subarray(16, 20) : ip.subarray(24, 40);
  return {
    kind,
    ethertype: u16(frame, 12),
    frame,
    family,
    protocol: family === 0 ? 0 : ((family === 4 ? ip[9] : ip[6]) ?? 0),
    source,
    destination,
    hops: (family === 4 ? ip[8] : ip[7]) ?? 0,
    sourcePort: 0,
    destinationPort: 0,
    malformed: false,
    fragment: false,
    begins: false,
    icmpType: 0,
    icmpCode: 0,
    payload: null,
    payloadAt: 0,
  };
}

function parse4(frame: Uint8Array): ModelPacket | null {
  const ip = frame.subarray(ETHERNET);
  const [first = 0] = ip;
  const headerBytes = (first & 0x0f) * 4;
  const total = u16(ip, 2);
  if (ip.length < 20 || first >> 4 !== 4 || headerBytes < 20 || headerBytes > ip.length || total < headerBytes)
    return null;
  const packet = blank(frame, "ip", 4);
  const place = u16(ip, 6);
  packet.fragment = (place & 0x2000) !== 0 || (place & 0x1fff) !== 0;
  if (total > ip.length || !areRightOptions(ip.subarray(20, headerBytes))) packet.malformed = true;
  else parseTransport(packet, ETHERNET + headerBytes, ETHERNET + total);
  return packet;
}

/** At most ten, each whole, and none that says another way than to the destination. */
function areRightOptions(options: Uint8Array): boolean {
  let at = 0;
  for (let seen = 0; seen <= 10; seen++) {
    if (at >= options.length) return at === options.length;
    const type = options[at] ?? 0;
    if (type === 0) return true;
    const bytes = type === 1 ? 1 : (options[at + 1] ?? 0);
    if (type !== 1 && (bytes < 2 || type === 131 || type === 137)) return false;
    at += bytes;
  }
  return false;
}

function parse6(frame: Uint8Array): ModelPacket | null {
  const ip = frame.subarray(ETHERNET);
  if (ip.length < BASE6 || (ip[0] ?? 0) >> 4 !== 6) return null;
  const packet = blank(frame, "ip", 6);
  const end = BASE6 + u16(ip, 4);
  const at = end > ip.length ? null : afterExtensions(packet, ip, end);
  if (at === null) packet.malformed = true;
  else parseTransport(packet, ETHERNET + at, ETHERNET + end);
  return packet;
}

/** Where what the packet carries begins, after at most six headers in 512 bytes; null when they are not right. */
function afterExtensions(packet: ModelPacket, ip: Uint8Array, end: number): number | null {
  let at = BASE6;
  for (let seen = 0; EXTENSIONS.has(packet.protocol); seen++) {
    if (seen === 6 || packet.fragment || end - at < 8) return null;
    const type = packet.protocol;
    const length = ip[at + 1] ?? 0;
    if (type === ROUTING && ip[at + 3] !== 0) return null;
    if (type === FRAGMENT) {
      const place = u16(ip, at + 2);
      packet.fragment = place >> 3 !== 0 || (place & 1) === 1;
    }
    packet.protocol = ip[at] ?? 0;
    at += type === FRAGMENT ? 8 : type === AUTHENTICATION ? (length + 2) * 4 : (length + 1) * 8;
    if (at > end || at - BASE6 > 512) return null;
  }
  return at;
}

function parseTransport(packet: ModelPacket, at: number, end: number): void {
  if (packet.fragment) return;
  const bytes = packet.frame.subarray(at, end);
  const ports = (headerBytes: number): void => {
    packet.sourcePort = u16(bytes, 0);
    packet.destinationPort = u16(bytes, 2);
    packet.payload = bytes.subarray(headerBytes);
    packet.payloadAt = at + headerBytes;
  };
  switch (packet.protocol) {
    case TCP: {
      const headerBytes = ((bytes[12] ?? 0) >> 4) * 4;
      packet.malformed = bytes.length < 20 || headerBytes < 20 || headerBytes > bytes.length;
      if (packet.malformed) return;
      const flags = bytes[13] ?? 0;
      packet.begins = (flags & 0x02) !== 0 && (flags & 0x10) === 0;
      ports(headerBytes);
      return;
    }
    case UDP:
      packet.malformed = bytes.length < 8;
      if (!packet.malformed) ports(8);
      return;
    case SCTP:
      packet.malformed = bytes.length < 12;
      if (packet.malformed) return;
      packet.begins = bytes.subarray(4, 8).every((byte) => byte === 0);
      ports(12);
      return;
    default:
      if (packet.protocol !== (packet.family === 4 ? ICMP : ICMP6) || bytes.length < 8) return;
      packet.icmpType = bytes[0] ?? 0;
      packet.icmpCode = bytes[1] ?? 0;
  }
}
