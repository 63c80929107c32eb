// Random frames over the same small world as the policies: mostly what guests send, often bent, sometimes noise.
import { joined, macBytes, uint16 } from "../frames.ts";
import { GATEWAY4, GUEST4, GUEST6, GUEST_MAC, NAMES, ROUTER4 } from "./policies.ts";
import type { Random } from "./random.ts";
import { ipv4Of, ipv6Of } from "./ranges.ts";

const OWN4 = [
  GUEST4,
  GUEST4,
  GUEST4,
  GUEST4,
  GUEST4,
  ROUTER4,
  "10.9.9.9",
  "0.0.0.0",
  "127.0.0.1",
  "224.0.0.9",
] as const;
const OTHER4 = [
  "10.1.2.3",
  "10.1.2.3",
  "10.1.2.4",
  "10.200.0.1",
  "192.168.1.1",
  "8.8.8.8",
  GATEWAY4,
  GATEWAY4,
  "169.254.169.254",
  "255.255.255.255",
  "224.0.0.251",
] as const;
const OWN6 = [GUEST6, GUEST6, GUEST6, "fe80::1", "::", "fd00:1::99", "2001:db8::1"] as const;
const OTHER6 = [
  "fd00:1::7",
  "fd00:1::7",
  "fd00:1::8",
  "2001:db8::2",
  "2001:db8:0:1::2",
  "fe80::2",
  "ff02::1:ff00:7",
  "ff02::1:2",
  "ff05::1",
  "fd00:ec2::254",
] as const;
const PROTOCOLS = [6, 6, 6, 17, 17, 17, 132, 1, 58, 47, 50] as const;
const PORTS = [443, 443, 53, 53, 80, 67, 547, 22, 40_000] as const;
const SOURCE_PORTS = [1000, 1001, 68, 546, 53] as const;
const ICMP_TYPES = [0, 8, 128, 129, 133, 134, 135, 136, 137] as const;

/** What the kernel wants of a frame before it runs a program on it: an IP header, or anything behind Ethernet's. */
const RUN_MIN_BYTES = new Map([
  [0x0800, 34],
  [0x86dd, 54],
]);
const RUN_MIN_BYTES_OTHER = 15;

export interface RandomFrame {
  readonly frame: Uint8Array;
  /** Of the guest's own making, else to it. */
  readonly sent: boolean;
  readonly segments: number;
  readonly segmentBytes: number;
}

/** What a story is about: anything, or one peer, so that packets meet again. */
export type World = "wide" | "narrow";

export function randomFrame(random: Random, world: World): RandomFrame {
  const sent = !random.once(5);
  const sizes = random.once(12)
    ? { segments: random.of([0, 0, 1, 2, 44]), segmentBytes: random.of([0, 1, 100, 1448]) }
    : { segments: 0, segmentBytes: 0 };
  return { frame: bent(random, whole(random, sent, world)), sent, ...sizes };
}

/** In a narrow world only the first of them, and now and then any. */
function among<Thing>(random: Random, things: readonly Thing[], world: World): Thing {
  return world === "narrow" && !random.once(10) ? (things[0] as Thing) : random.of(things);
}

function whole(random: Random, sent: boolean, world: World): Uint8Array {
  const own = macBytes(random.once(20) ? "02:fc:00:00:00:09" : GUEST_MAC);
  const other = macBytes("02:fc:ff:00:00:01");
  const ethernet = (type: number, payload: Uint8Array): Uint8Array =>
    joined(sent ? other : own, sent ? own : other, uint16(type), payload);
  if (random.once(25)) return ethernet(0x0806, arp(random, own));
  if (random.once(40))
    return ethernet(random.of([0x8100, 0x88cc, 0x0026, 0x88a8]), random.bytes(random.between(1, 60)));
  const isFour = random.once(2);
  return ethernet(isFour ? 0x0800 : 0x86dd, isFour ? packet4(random, sent, world) : packet6(random, sent, world));
}

function arp(random: Random, own: Uint8Array): Uint8Array {
  const sender = ipv4Of(random.of([...OWN4, "0.0.0.0"]));
  return joined([0, 1, 8, 0, 6, 4, 0, random.between(1, 2)], own, sender, random.bytes(6), ipv4Of(GATEWAY4));
}

function packet4(random: Random, sent: boolean, world: World): Uint8Array {
  const [own, other] = [ipv4Of(among(random, OWN4, world)), ipv4Of(among(random, OTHER4, world))];
  const protocol = among(random, PROTOCOLS, world);
  const options = random.once(12) ? random.between(1, 10) : 0;
  const body = transport(random, protocol, sent, 4, world);
  const place = random.once(12) ? random.of([0x2000, 0x0001, 0x2010, 0x1fff]) : random.of([0, 0x4000, 0x8000]);
  return joined(
    [0x40 | (5 + options), 0],
    uint16(20 + options * 4 + body.length),
    [0, 1],
    uint16(place),
    [64, protocol, 0, 0],
    sent ? own : other,
    sent ? other : own,
    optionsOf(random, options * 4),
    body,
  );
}

function optionsOf(random: Random, length: number): Uint8Array {
  const bytes = new Uint8Array(length);
  for (let at = 0; at < length && !random.once(6);) {
    const size = random.between(random.once(12) ? 0 : 2, 8);
    bytes[at] = random.of([1, 1, 7, 68, 148, 131, 137]);
    if (bytes[at] !== 1 && at + 1 < length) bytes[at + 1] = size;
    at += bytes[at] === 1 ? 1 : Math.max(1, size);
  }
  return bytes;
}

function packet6(random: Random, sent: boolean, world: World): Uint8Array {
  const [own, other] = [ipv6Of(among(random, OWN6, world)), ipv6Of(among(random, OTHER6, world))];
  const protocol = among(random, PROTOCOLS, world);
  const types = random.once(4)
    ? Array.from({ length: random.between(1, 7) }, () => random.of([0, 43, 44, 51, 60, 60]))
    : [];
  const parts: Uint8Array[] = [];
  for (const [index, type] of types.entries()) {
    const next = types[index + 1] ?? protocol;
    const units = random.once(10) ? random.between(0, 30) : random.below(2);
    if (type === 44) parts.push(joined([next, 0], uint16(random.of([0, 0, 0, 1, 8, 0xfff8, 6])), [0, 0, 0, 9]));
    else if (type === 51) parts.push(joined([next, units], new Uint8Array(units * 4 + 6)));
    else parts.push(joined([next, units, 0, type === 43 && random.once(3) ? 1 : 0], new Uint8Array(units * 8 + 4)));
  }
  const inner = joined(...parts, transport(random, protocol, sent, 6, world));
  const hops = random.of([255, 255, 64]);
  return joined(
    [0x60, 0, 0, 0],
    uint16(inner.length),
    [types[0] ?? protocol, hops],
    sent ? own : other,
    sent ? other : own,
    inner,
  );
}

function transport(random: Random, protocol: number, sent: boolean, family: 4 | 6, world: World): Uint8Array {
  let [far, near] = [among(random, PORTS, world), among(random, SOURCE_PORTS, world)] as [number, number];
  // Ports of asking for addresses come in pairs.
  if (random.once(world === "narrow" ? 30 : 6)) [near, far] = family === 4 ? [68, 67] : [546, 547];
  const ports = sent ? [...uint16(near), ...uint16(far)] : [...uint16(far), ...uint16(near)];
  switch (protocol) {
    case 6: {
      const payload = random.once(2) ? new Uint8Array(0) : carried(random, far, true);
      const flags =
        payload.length > 0 && !random.once(8) ? 0x18 : random.of([0x02, 0x12, 0x10, 0x11, 0x04, 0x00, 0x42]);
      const options = random.once(3) ? random.between(1, 10) : 0;
      const rest = joined(
        [0, 0, 0, 1, 0, 0, 0, 0, (5 + options) << 4, flags, 255, 255, 0, 0, 0, 0],
        new Uint8Array(options * 4),
      );
      return joined(ports, rest, payload);
    }
    case 17: {
      const payload = carried(random, far, false);
      return joined(ports, uint16(8 + payload.length), [0, 0], payload);
    }
    case 132:
      return joined(ports, random.once(2) ? [0, 0, 0, 0] : [1, 2, 3, 4], [0, 0, 0, 0], random.bytes(random.below(9)));
    case 1:
    case 58:
      return joined([random.of(ICMP_TYPES), random.once(8) ? 1 : 0, 0, 0], random.bytes(random.of([0, 3, 4, 20])));
    default:
      return random.bytes(random.below(30));
  }
}

function carried(random: Random, port: number, stream: boolean): Uint8Array {
  if (random.once(5)) return random.bytes(random.between(1, 40));
  if (port === 53) return stream ? inLength(random, question(random)) : question(random);
  return port === 443 && stream ? greeting(random) : random.bytes(random.below(30));
}

function inLength(random: Random, message: Uint8Array): Uint8Array {
  return joined(uint16(message.length + (random.once(8) ? 1 : 0)), message);
}

/** Sometimes in capitals, with another label before it, or too long. */
function randomName(random: Random): string {
  let name: string = random.of(NAMES);
  if (random.once(4)) name = name.toUpperCase();
  if (random.once(6)) name = `${"x".repeat(random.between(1, 64))}.${name}`;
  if (random.once(16)) name = `.${name}`;
  if (random.once(12)) name = `${"y.".repeat(random.between(40, 62))}${name}`;
  return name;
}

function question(random: Random): Uint8Array {
  const labels = (random.once(30) ? [] : randomName(random).split(".")).map((label) => {
    const bytes = Buffer.from(label);
    if (random.once(60)) bytes[random.below(bytes.length)] = 0x2e;
    return joined([bytes.length], bytes);
  });
  const flags = random.once(12) ? random.of([0x80, 0x28, 0x81, 0x05]) : 1;
  const head = [0, 7, flags, 0, 0, random.once(12) ? random.below(3) : 1, 0, 0, 0, 0, 0, 0];
  const end = random.once(12) ? random.of([[0xc0, 0x0c], [0], [0, 0, 1]]) : [0, 0, 1, 0, 1];
  return joined(head, ...labels, end, random.once(4) ? random.bytes(random.below(20)) : []);
}

function greeting(random: Random): Uint8Array {
  if (random.once(12)) return Uint8Array.of(0x17, 3, 3, 0, 1, 0);
  const name = Buffer.from(randomName(random));
  const extension = (type: number, body: Uint8Array): Uint8Array => joined(uint16(type), uint16(body.length), body);
  const others = Array.from({ length: random.of([0, 1, 3, 62, 63, 64]) }, () =>
    extension(random.between(1, 60), random.bytes(random.below(4))),
  );
  const names = extension(0, joined(uint16(name.length + 3), [random.once(20) ? 1 : 0], uint16(name.length), name));
  const extensions = joined(...others, random.once(8) ? [] : names, extension(21, new Uint8Array(4)));
  const session = random.bytes(random.of([0, 32]));
  const body = joined(
    [3, 3],
    new Uint8Array(32),
    [session.length],
    session,
    uint16(4),
    [19, 1, 19, 2],
    [1, 0],
    uint16(extensions.length),
    extensions,
  );
  const shake = joined([random.once(20) ? 2 : 1, 0], uint16(body.length), body);
  const recordBytes = random.once(10) ? random.between(0, shake.length) : shake.length;
  return joined([0x16, 3, random.of([1, 3, 5])], uint16(recordBytes), shake);
}

/** Cut, padded, or with bytes changed, once in a while. Never shorter than what the kernel runs a program on. */
function bent(random: Random, frame: Uint8Array): Uint8Array {
  let bytes: Uint8Array = Uint8Array.from(frame);
  if (random.once(8)) {
    for (let times = random.between(1, 4); times > 0; times--) bytes[random.below(bytes.length)] = random.below(256);
  }
  if (random.once(16)) bytes = bytes.slice(0, random.between(1, bytes.length));
  if (random.once(10)) bytes = joined(bytes, new Uint8Array(random.below(20)));
  const least = RUN_MIN_BYTES.get(((bytes[12] ?? 0) << 8) | (bytes[13] ?? 0)) ?? RUN_MIN_BYTES_OTHER;
  return bytes.length < least ? joined(bytes, new Uint8Array(least - bytes.length)) : bytes;
}
