// The decisions of `native/bpf`, written again from its README in another language and in another way. What it keeps is
// in plain maps; `compare.ts` holds them beside those of the kernel.
import {
  BURST_NS,
  CONTROL_PACKETS_PER_SECOND,
  DROP_REASONS,
  encodeDropKey,
  encodeFlowKey,
  FLOW_KEY_BYTES,
  OTHER_IDLE_SECONDS,
  TCP_IDLE_SECONDS,
  UDP_IDLE_SECONDS,
} from "../../../ffi/layout/bpf.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import { ipv4Of, type Range, rangesOf } from "./ranges.ts";
import { isAllowedQuestion, readGreeting } from "./names.ts";
import { ICMP, ICMP6, type ModelPacket, parseFrame, SCTP, TCP, UDP, u16 } from "./parse.ts";

export type Phase = "running" | "quiescing" | "restoring";

/** How an interface is treated at the moment. */
export interface Situation {
  readonly policy: EffectivePolicy;
  readonly policyId: number;
  readonly ifindex: number;
  readonly routed: boolean;
  readonly gateway: string | null;
  /** The guest's own address, unless the policy names one. */
  readonly guestAddress: string | null;
  readonly epoch: number;
  readonly buckets: number;
  readonly phase: Phase;
  readonly mark: number;
}

export interface Counters {
  packets: number;
  bytes: number;
  lastSeenNs: bigint;
}

export interface ModelConnection {
  /** 40 bytes, as text. */
  tuple: string;
  protocol: number;
  lastSeenNs: bigint;
  policyId: number;
  epoch: number;
  reply: boolean;
  greeted: boolean;
  packets: number;
  bytes: number;
}

export interface ModelEvent {
  readonly tuple: string;
  readonly reason: number;
  readonly action: number;
  readonly bytes: number;
}

export interface Sizes {
  /** Of the context: what a large packet will be cut into. */
  readonly segments: number;
  readonly segmentBytes: number;
}

type Reason = (typeof DROP_REASONS)[number];

/** A denial; `hard` where audit does not lift it. */
class Denial {
  constructor(
    readonly reason: Reason,
    readonly hard = false,
  ) {}
}

const SECOND = 1_000_000_000n;
const MASK64 = (1n << 64n) - 1n;
const WAYS = 8;
const METADATA = [Buffer.from("a9fea9fe", "hex"), Buffer.from("fd000ec2000000000000000000000254", "hex")];
const DHCP6_SERVERS = Buffer.from("ff020000000000000000000000010002", "hex");
const text = (bytes: Uint8Array): string => Buffer.from(bytes).toString("latin1");
const isLinkLocal = (address: Uint8Array): boolean => address[0] === 0xfe && ((address[1] ?? 0) & 0xc0) === 0x80;
const isZero = (bytes: Uint8Array): boolean => bytes.every((byte) => byte === 0);
const same = (a: Uint8Array, b: Uint8Array | null): boolean => b !== null && Buffer.compare(a, b) === 0;

const NOTHING: ModelConnection = {
  tuple: "\0".repeat(40),
  protocol: 0,
  lastSeenNs: 0n,
  policyId: 0,
  epoch: 0,
  reply: false,
  greeted: false,
  packets: 0,
  bytes: 0,
};

function addTo(counters: Map<string, Counters>, key: Uint8Array, more: Counters): void {
  const before = counters.get(text(key)) ?? { packets: 0, bytes: 0, lastSeenNs: 0n };
  counters.set(text(key), {
    packets: before.packets + more.packets,
    bytes: before.bytes + more.bytes,
    lastSeenNs: before.lastSeenNs > more.lastSeenNs ? before.lastSeenNs : more.lastSeenNs,
  });
}

export class Model {
  readonly totals = { allowedPackets: 0, allowedBytes: 0, droppedPackets: 0, droppedBytes: 0 };
  readonly flows = new Map<string, Counters>();
  readonly drops = new Map<string, Counters>();
  readonly events: ModelEvent[] = [];
  readonly connections = new Map<number, ModelConnection[]>();
  learned: { address: string; origin: "arp" | "ip"; lastSeenNs: bigint } | null = null;
  readonly #budgets = { bytes: 0n, packets: 0n, control: 0n };
  readonly #ranges = new WeakMap<EffectivePolicy, { allow: Range[]; deny: Range[] }>();
  #situation!: Situation;
  #now = 0n;
  #segments = 1;

  budgets(): { readonly bytes: bigint; readonly packets: bigint; readonly control: bigint } {
    return this.#budgets;
  }

  /** A frame that the guest sends. True: it passes. */
  send(frame: Uint8Array, sizes: Sizes, now: bigint, situation: Situation): boolean {
    const packet = this.#begin(frame, sizes, now, situation);
    if (packet === null) return false;
    const { policy } = situation;
    const spoofed = policy.source.antiSpoof ? this.#spoofed(packet) : null;
    if (spoofed !== null) return this.#deny(packet, new Denial(spoofed, true));
    if (policy.source.learn) this.#learn(packet);
    if (packet.kind === "ip") return this.#decide(packet);
    const isOpen = policy.defaultAllow && !policy.enforceCidrs && !policy.enforcePorts;
    if (packet.kind === "arp" || isOpen) return this.#count(packet, true);
    return this.#deny(packet, new Denial("unsupported-ethertype"));
  }

  /** A frame that the guest gets: it always does, and answers to it may be expected. */
  receive(frame: Uint8Array, sizes: Sizes, now: bigint, situation: Situation): void {
    const seen = this.#begin(frame, sizes, now, situation);
    if (seen === null || seen.kind !== "ip" || seen.malformed || seen.fragment) return;
    const packet: ModelPacket = {
      ...seen,
      source: seen.destination,
      destination: seen.source,
      sourcePort: seen.destinationPort,
      destinationPort: seen.sourcePort,
    };
    if (!seen.begins && this.#find(packet) !== null) return;
    const echo = seen.family === 4 ? 8 : 128;
    const isIcmp = seen.protocol === (seen.family === 4 ? ICMP : ICMP6);
    const isFirst =
      seen.protocol === TCP || seen.protocol === SCTP ? seen.begins : isIcmp ? seen.icmpType === echo : true;
    if (!isFirst || situation.phase !== "running") return;
    if (!this.#isDenied(packet)) this.#remember(packet, { reply: true, greeted: false });
  }

  #begin(frame: Uint8Array, { segments, segmentBytes }: Sizes, now: bigint, situation: Situation): ModelPacket | null {
    this.#situation = situation;
    this.#now = now;
    const packet = parseFrame(frame);
    this.#segments = 1;
    if (packet?.kind !== "ip") return packet;
    if (segments !== 0) this.#segments = segments;
    else if (segmentBytes !== 0 && packet.payload !== null) {
      this.#segments = Math.max(1, Math.ceil((frame.length - packet.payloadAt) / segmentBytes));
    }
    return packet;
  }

  #spoofed(packet: ModelPacket): Reason | null {
    const { routed, policy, guestAddress, gateway } = this.#situation;
    const { mac, ipv4, ipv6 } = policy.source;
    const own4 = ipv4 ?? guestAddress;
    const hardware = mac === null ? null : Buffer.from(mac.replaceAll(":", ""), "hex");
    if (!routed) {
      if (hardware !== null && !same(packet.frame.subarray(6, 12), hardware)) return "spoof-mac";
      if (packet.kind === "arp") {
        const arp = packet.frame.subarray(14);
        if (arp.length < 28 || !same(arp.subarray(0, 6), Buffer.from("000108000604", "hex"))) return "spoof-mac";
        if (hardware !== null && !same(arp.subarray(8, 14), hardware)) return "spoof-mac";
        const sender = arp.subarray(14, 18);
        if (!isZero(sender) && !(own4 !== null && same(sender, ipv4Of(own4)))) return "spoof-ip";
      }
    }
    if (packet.kind !== "ip") return null;
    if (packet.family === 6) {
      const own = isLinkLocal(packet.source) || isZero(packet.source);
      const named = ipv6 !== null && rangesOf([`${ipv6}/128`])[0]?.holds(packet.source) === true;
      return own || named ? null : "spoof-ip";
    }
    if (isZero(packet.source)) return this.#isDiscovery(packet) ? null : "spoof-ip";
    if (own4 !== null && same(packet.source, ipv4Of(own4))) return null;
    if (!routed || gateway === null) return "spoof-ip";
    const router = ipv4Of(gateway);
    router[3] = (router[3] ?? 0) + 1;
    return same(packet.source, router) ? null : "spoof-ip";
  }

  #isDiscovery(packet: ModelPacket): boolean {
    return packet.protocol === UDP && packet.sourcePort === 68 && packet.destinationPort === 67;
  }

  #learn(packet: ModelPacket): void {
    const { routed, gateway } = this.#situation;
    let address: Uint8Array;
    if (packet.kind === "arp") {
      if (routed || packet.frame.length < 42) return;
      address = packet.frame.subarray(28, 32);
    } else if (packet.family === 4) {
      address = packet.source;
      const router = gateway === null ? null : ipv4Of(gateway);
      if (router !== null) router[3] = (router[3] ?? 0) + 1;
      if (routed && same(address, router)) return;
    } else return;
    const [first = 0] = address;
    if (first === 0 || first === 127 || first >= 224) return;
    const origin = packet.kind === "arp" ? "arp" : "ip";
    const known = this.learned;
    if (known?.address === text(address) && known.origin === origin && this.#now - known.lastSeenNs < SECOND) return;
    this.learned = { address: text(address), origin, lastSeenNs: this.#now };
  }

  #decide(packet: ModelPacket): boolean {
    if (packet.malformed) return this.#deny(packet, new Denial("malformed-l4", true));
    if (this.#isControl(packet)) {
      if (!this.#draw([["control", SECOND / BigInt(CONTROL_PACKETS_PER_SECOND)]])) {
        return this.#deny(packet, new Denial("rate-limit", true));
      }
      return this.#allow(packet);
    }
    const known = packet.fragment || packet.begins ? null : this.#find(packet);
    const isByThisPolicy = known !== null && known.policyId === this.#situation.policyId;
    const names = { greeted: false };
    let denial: Denial | null;
    if (!isByThisPolicy) denial = this.#judge(packet, known, names);
    else denial = known.reply ? null : this.#judgeNames(packet, known, names);
    if (denial !== null) return this.#deny(packet, denial);
    if (!this.#drawBudgets(packet)) return this.#deny(packet, new Denial("rate-limit"));
    if (known !== null && isByThisPolicy && !names.greeted) {
      known.packets += this.#segments;
      known.bytes += packet.frame.length;
      return this.#pass(packet);
    }
    const isRemembered = !packet.fragment && this.#remember(packet, { reply: false, greeted: names.greeted });
    return isRemembered ? this.#pass(packet) : this.#allow(packet);
  }

  #isControl(packet: ModelPacket): boolean {
    if (packet.fragment) return false;
    const { destination } = packet;
    if (packet.family === 4) {
      const gateway = this.#situation.gateway;
      const isBroadcast = destination.every((byte) => byte === 255);
      return this.#isDiscovery(packet) && (isBroadcast || (gateway !== null && same(destination, ipv4Of(gateway))));
    }
    if (packet.protocol === UDP) {
      const ports = packet.sourcePort === 546 && packet.destinationPort === 547;
      return ports && isLinkLocal(packet.source) && same(destination, DHCP6_SERVERS);
    }
    if (packet.protocol !== ICMP6 || packet.hops !== 255 || packet.icmpCode !== 0) return false;
    const isOnLink = isLinkLocal(destination) || (destination[0] === 0xff && destination[1] === 0x02);
    return [133, 135, 136].includes(packet.icmpType) && isOnLink;
  }

  #judge(packet: ModelPacket, known: ModelConnection | null, names: { greeted: boolean }): Denial | null {
    const { policy, phase, gateway } = this.#situation;
    if (phase !== "running" && known === null) {
      return new Denial(phase === "quiescing" ? "migration-quiesce" : "migration-restoring", true);
    }
    const hasNames = policy.names.dns !== null || policy.names.sni !== null;
    if (packet.fragment && (policy.enforcePorts || hasNames)) return new Denial("fragmented-l4");
    if (
      gateway !== null &&
      packet.family === 4 &&
      this.#isQuestion(packet) &&
      same(packet.destination, ipv4Of(gateway))
    ) {
      return this.#judgeNames(packet, known, names);
    }
    const { allow } = this.#rangesOf(policy);
    const matching = allow.filter((range) => range.holds(packet.destination));
    const isMetadata = METADATA.some((address) => same(packet.destination, address));
    const isNamed = matching.some(({ prefixLength }) => prefixLength === packet.destination.length * 8);
    if (isMetadata && !isNamed) return new Denial("explicit-cidr-deny", true);
    if (this.#isDenied(packet)) return new Denial("explicit-cidr-deny");
    if (known?.reply === true) return null;
    if (policy.denyUdp && [UDP, SCTP].includes(packet.protocol)) return new Denial("udp-deny");
    if (policy.allowIcmp && packet.protocol === (packet.family === 4 ? ICMP : ICMP6)) return null;
    if (!policy.enforceCidrs && !policy.enforcePorts && !policy.defaultAllow) return new Denial("default-deny");
    if (policy.enforceCidrs && matching.length === 0) return new Denial("cidr-miss");
    if (policy.enforcePorts && !this.#isAllowedPort(packet)) return new Denial("l4-miss");
    return this.#judgeNames(packet, known, names);
  }

  #isQuestion(packet: ModelPacket): boolean {
    return !packet.fragment && packet.destinationPort === 53 && [UDP, TCP].includes(packet.protocol);
  }

  #judgeNames(packet: ModelPacket, known: ModelConnection | null, names: { greeted: boolean }): Denial | null {
    const { dns, sni } = this.#situation.policy.names;
    const bytes = packet.payload?.length ?? 0;
    if (dns !== null && this.#isQuestion(packet)) {
      if (packet.protocol === TCP && bytes === 0) return null;
      return isAllowedQuestion(packet, dns) ? null : new Denial("dns-deny");
    }
    if (sni === null || packet.protocol !== TCP || packet.destinationPort !== 443 || bytes === 0) return null;
    if (known?.greeted === true) return null;
    if (readGreeting(packet.payload ?? new Uint8Array(0), sni) === "denied") return new Denial("sni-deny");
    names.greeted = true;
    return null;
  }

  #isAllowedPort(packet: ModelPacket): boolean {
    const numbers = { icmp: ICMP, tcp: TCP, udp: UDP, icmp6: ICMP6, sctp: SCTP };
    return this.#situation.policy.allowPorts.some(
      ({ protocol, port }) => numbers[protocol] === packet.protocol && (port === 0 || port === packet.destinationPort),
    );
  }

  #isDenied(packet: ModelPacket): boolean {
    return this.#rangesOf(this.#situation.policy).deny.some((range) => range.holds(packet.destination));
  }

  #rangesOf(policy: EffectivePolicy): { readonly allow: readonly Range[]; readonly deny: readonly Range[] } {
    const known = this.#ranges.get(policy);
    if (known !== undefined) return known;
    const ranges = { allow: rangesOf(policy.allowCidrs), deny: rangesOf(policy.denyCidrs) };
    this.#ranges.set(policy, ranges);
    return ranges;
  }

  #drawBudgets(packet: ModelPacket): boolean {
    const { bytesPerSecond, packetsPerSecond } = this.#situation.policy;
    const costs: ["bytes" | "packets", bigint][] = [];
    if (bytesPerSecond !== null) costs.push(["bytes", (BigInt(packet.frame.length) * SECOND) / BigInt(bytesPerSecond)]);
    if (packetsPerSecond !== null)
      costs.push(["packets", (BigInt(this.#segments) * SECOND) / BigInt(packetsPerSecond)]);
    return this.#draw(costs.filter(([, cost]) => cost > 0n));
  }

  /** From all of these budgets, or from none. */
  #draw(costs: readonly (readonly ["bytes" | "packets" | "control", bigint])[]): boolean {
    const after = costs.map(([name, cost]) => {
      const until = this.#budgets[name];
      const isFull = until <= this.#now;
      return {
        name,
        isWithin: isFull || until + cost <= this.#now + BigInt(BURST_NS),
        until: (isFull ? this.#now : until) + cost,
      };
    });
    if (!after.every(({ isWithin }) => isWithin)) return false;
    for (const { name, until } of after) this.#budgets[name] = until;
    return true;
  }

  #tupleOf(packet: ModelPacket): Uint8Array {
    const bytes = Buffer.alloc(40);
    bytes.set(packet.source, 0);
    bytes.set(packet.destination, 16);
    bytes.writeUInt16LE(packet.sourcePort, 32);
    bytes.writeUInt16LE(packet.destinationPort, 34);
    bytes[36] = packet.protocol;
    bytes[37] = packet.family;
    return bytes;
  }

  #bucketOf(tuple: Uint8Array): number {
    const view = new DataView(tuple.buffer, tuple.byteOffset);
    let hash = BigInt(this.#situation.epoch);
    for (let word = 0; word < 5; word++) {
      hash = ((hash ^ view.getBigUint64(word * 8, true)) * 0x9e3779b97f4a7c15n) & MASK64;
      hash ^= hash >> 32n;
    }
    return Number(hash & BigInt(this.#situation.buckets - 1));
  }

  #isOver(connection: ModelConnection): boolean {
    const seconds =
      connection.protocol === TCP || connection.protocol === SCTP
        ? TCP_IDLE_SECONDS
        : connection.protocol === UDP
          ? UDP_IDLE_SECONDS
          : OTHER_IDLE_SECONDS;
    return this.#now - connection.lastSeenNs > BigInt(seconds) * SECOND;
  }

  #find(packet: ModelPacket): ModelConnection | null {
    const { buckets, epoch } = this.#situation;
    if (buckets === 0) return null;
    const tuple = this.#tupleOf(packet);
    const ways = this.connections.get(this.#bucketOf(tuple)) ?? [];
    const found = ways.find((connection) => connection.epoch === epoch && connection.tuple === text(tuple));
    if (found === undefined || this.#isOver(found)) return null;
    found.lastSeenNs = this.#now;
    return found;
  }

  /** False: nothing is remembered here. */
  #remember(packet: ModelPacket, flags: { readonly reply: boolean; readonly greeted: boolean }): boolean {
    const { buckets, epoch, policyId } = this.#situation;
    if (buckets === 0) return false;
    const tuple = this.#tupleOf(packet);
    const bucket = this.#bucketOf(tuple);
    const ways = this.connections.get(bucket) ?? Array.from({ length: WAYS }, () => ({ ...NOTHING }));
    this.connections.set(bucket, ways);
    const own = ways.findIndex((connection) => connection.epoch === epoch && connection.tuple === text(tuple));
    const ages = ways.map((connection) =>
      connection.epoch !== epoch || this.#isOver(connection) ? 0n : connection.lastSeenNs,
    );
    const oldest = ages.reduce((best, age, index) => (age < (ages[best] ?? 0n) ? index : best), 0);
    const before = ways[own < 0 ? oldest : own] ?? NOTHING;
    const kept = own >= 0 && !packet.begins && !this.#isOver(before) ? before : NOTHING;
    const counted = own < 0 ? NOTHING : before;
    if (own < 0 && before.packets !== 0) this.#addFlowOf(before);
    ways[own < 0 ? oldest : own] = {
      tuple: text(tuple),
      protocol: packet.protocol,
      lastSeenNs: this.#now,
      policyId,
      epoch,
      reply: flags.reply || kept.reply,
      greeted: flags.greeted || kept.greeted,
      packets: counted.packets + (flags.reply ? 0 : this.#segments),
      bytes: counted.bytes + (flags.reply ? 0 : packet.frame.length),
    };
    return true;
  }

  /** What a connection counted before it made room. */
  #addFlowOf({ tuple, packets, bytes, lastSeenNs }: ModelConnection): void {
    const key = Buffer.alloc(FLOW_KEY_BYTES);
    key.writeUInt32LE(this.#situation.policy.identity, 0);
    key.write(tuple.slice(0, 37), 4, "latin1");
    key[41] = 1;
    key.write(tuple.slice(37, 38), 42, "latin1");
    addTo(this.flows, key, { packets, bytes, lastSeenNs });
  }

  #keyOf(packet: ModelPacket, verdict: 0 | 1) {
    const room = (address: Uint8Array): Uint8Array => {
      const bytes = new Uint8Array(16);
      bytes.set(address);
      return bytes;
    };
    return {
      identity: this.#situation.policy.identity,
      source: room(packet.source),
      destination: room(packet.destination),
      sourcePort: packet.sourcePort,
      destinationPort: packet.destinationPort,
      protocol: packet.protocol,
      verdict,
      family: packet.family,
    };
  }

  #add(counters: Map<string, Counters>, key: Uint8Array, packet: ModelPacket): void {
    addTo(counters, key, { packets: this.#segments, bytes: packet.frame.length, lastSeenNs: this.#now });
  }

  /** One that is of no connection. */
  #allow(packet: ModelPacket): boolean {
    this.#add(this.flows, encodeFlowKey(this.#keyOf(packet, 1)), packet);
    return this.#pass(packet);
  }

  #pass(packet: ModelPacket): boolean {
    if (this.#situation.policy.sampleRate === 1) {
      this.events.push({ tuple: text(this.#tupleOf(packet)), reason: 0, action: 0, bytes: packet.frame.length });
    }
    return this.#count(packet, true);
  }

  #deny(packet: ModelPacket, { reason, hard }: Denial): boolean {
    const passes = this.#situation.policy.audit && !hard;
    const code = DROP_REASONS.indexOf(reason);
    const action = passes ? 1 : 0;
    const key = this.#keyOf(packet, 0);
    if (packet.kind === "ip") this.#add(this.flows, encodeFlowKey(key), packet);
    this.#add(this.drops, encodeDropKey({ ...key, reason: code, action }), packet);
    this.events.push({ tuple: text(this.#tupleOf(packet)), reason: code, action, bytes: packet.frame.length });
    return this.#count(packet, passes);
  }

  #count(packet: ModelPacket, passes: boolean): boolean {
    this.totals[passes ? "allowedPackets" : "droppedPackets"] += this.#segments;
    this.totals[passes ? "allowedBytes" : "droppedBytes"] += packet.frame.length;
    return passes;
  }
}
