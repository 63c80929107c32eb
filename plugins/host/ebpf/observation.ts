// What the programs in the kernel tell about packets: totals, flows, denials, connections, the guest's address. Only read
// here; what is asked for one sandbox is told apart by its identity or its place.
import {
  type Connection as KernelConnection,
  CONNECTION_FLAGS,
  decodeConnectionBucket,
  decodeConnectionBucketKey,
  decodeDropKey,
  decodeFlowCounters,
  decodeFlowKey,
  decodeInterfaceConfig,
  decodeLearnedAddress,
  decodeTraffic,
  DROP_REASONS,
  encodeConnectionBucketKey,
  encodeFlowKey,
  type FlowCounters,
  type FlowKey,
  type InterfaceConfig,
  LEARNED_FROM,
  OTHER_IDLE_SECONDS,
  TCP_IDLE_SECONDS,
  TRAFFIC_BYTES,
  UDP_IDLE_SECONDS,
} from "../../../ffi/layout/bpf.ts";
import { limits } from "../../../src/config/limits.ts";
import type { Connection, Drop, Flow, TrafficStats } from "../../../src/contracts/dataplane.ts";
import { type Family, formatAddress } from "./addresses.ts";
import { type KernelMap, type TrafficMaps, walk, wordKey } from "./kernel-map.ts";

const NS_PER_SECOND = 1_000_000_000n;
const [TCP, UDP, SCTP] = [6, 17, 132];
/** Buckets that are read before the event loop has its turn. */
const BUCKETS_AT_ONCE = 128;

/** Sum over all processors. */
export function trafficOf(maps: TrafficMaps, slot: number): TrafficStats {
  const perCpu = maps.fluxvm_stats.get(wordKey(slot)) ?? new Uint8Array(0);
  const sum = { allowedPackets: 0n, allowedBytes: 0n, droppedPackets: 0n, droppedBytes: 0n };
  for (let at = 0; at + TRAFFIC_BYTES <= perCpu.length; at += TRAFFIC_BYTES) {
    const one = decodeTraffic(perCpu.subarray(at, at + TRAFFIC_BYTES));
    sum.allowedPackets += one.allowedPackets;
    sum.allowedBytes += one.allowedBytes;
    sum.droppedPackets += one.droppedPackets;
    sum.droppedBytes += one.droppedBytes;
  }
  return sum;
}

export interface FlowQuestion {
  /** Null: of every sandbox. */
  readonly identity: number | null;
  /** Seen then or later, on the host's monotonic clock. */
  readonly sinceNs: bigint;
  readonly limit: number;
}

/**
 * Newest first. What a connection let through is counted with the connection while that has a place, everything else among
 * the flows; a flow may be in both, and is told as one.
 */
export async function flowsOf(maps: TrafficMaps, { identity, sinceNs, limit }: FlowQuestion): Promise<readonly Flow[]> {
  const flows = new Map<string, FlowCounters & { readonly key: FlowKey }>();
  const add = (bytes: Uint8Array, more: FlowCounters): void => {
    const name = Buffer.from(bytes).toString("latin1");
    const before = flows.get(name);
    flows.set(name, {
      key: before?.key ?? decodeFlowKey(bytes),
      packets: more.packets + (before?.packets ?? 0n),
      bytes: more.bytes + (before?.bytes ?? 0n),
      lastSeenNs: before === undefined || more.lastSeenNs > before.lastSeenNs ? more.lastSeenNs : before.lastSeenNs,
    });
  };
  for await (const [key, value] of elements(maps.fluxvm_flows, identity)) add(key, decodeFlowCounters(value));
  for await (const [key, counters] of countedConnections(maps, identity)) add(key, counters);
  return [...flows.values()]
    .filter(({ lastSeenNs }) => lastSeenNs >= sinceNs)
    .sort(newestFirst)
    .slice(0, limit)
    .map(({ key, ...counters }) => ({ ...shown(key), verdict: key.verdict === 0 ? "drop" : "allow", ...counters }));
}

/** Every connection that let packets through, as the key of its flow and what it counted. */
async function* countedConnections(maps: TrafficMaps, identity: number | null) {
  const identities = new Map<number, number>();
  for await (const { value } of walk(maps.fluxvm_iface)) {
    const config = decodeInterfaceConfig(value);
    if (identity === null || config.identity === identity) identities.set(config.slot, config.identity);
  }
  const buckets = identity === null ? bucketsOfAll(maps) : bucketsOf(maps, [...identities.keys()]);
  for await (const { slot, value } of buckets) {
    const own = identities.get(slot);
    if (own === undefined) continue;
    for (const connection of decodeConnectionBucket(value).connections) {
      if (connection.packets === 0n) continue;
      yield [encodeFlowKey({ ...connection, identity: own, verdict: 1 }), connection] as const;
    }
  }
}

interface Bucket {
  readonly slot: number;
  readonly value: Uint8Array;
}

async function* bucketsOfAll(maps: TrafficMaps): AsyncGenerator<Bucket> {
  for await (const { key, value } of walk(maps.fluxvm_ct)) yield { slot: decodeConnectionBucketKey(key).slot, value };
}

/** Of an interface there may be any of its buckets. */
async function* bucketsOf(maps: TrafficMaps, slots: readonly number[]): AsyncGenerator<Bucket> {
  for (const slot of slots) {
    for (let bucket = 0; bucket < limits.connectionBucketsPerSandbox; bucket++) {
      if (bucket % BUCKETS_AT_ONCE === 0) await new Promise(setImmediate);
      const value = maps.fluxvm_ct.get(encodeConnectionBucketKey({ slot, bucket }));
      if (value !== null) yield { slot, value };
    }
  }
}

/** Most packets first, then newest. */
export async function dropsOf(maps: TrafficMaps, identity: number | null, limit: number): Promise<readonly Drop[]> {
  const drops: Drop[] = [];
  for await (const [key, value] of elements(maps.fluxvm_drops, identity)) {
    const drop = decodeDropKey(key);
    drops.push({
      ...shown(drop),
      ...decodeFlowCounters(value),
      reasonCode: drop.reason,
      reason: DROP_REASONS[drop.reason] ?? "unknown",
      action: drop.action === 0 ? "drop" : "audit",
    });
  }
  return drops.sort((one, other) => compare(other.packets, one.packets) || newestFirst(one, other)).slice(0, limit);
}

/** Those that are remembered and have not expired by `nowNs`, in no order. */
export async function* remembered(
  maps: TrafficMaps,
  config: InterfaceConfig,
  nowNs: bigint,
): AsyncGenerator<KernelConnection> {
  for await (const { value } of bucketsOf(maps, [config.slot])) {
    for (const connection of decodeConnectionBucket(value).connections) {
      const isCurrent = connection.epoch === config.ctEpoch && connection.policyId === config.policyId;
      if (isCurrent && nowNs - connection.lastSeenNs < idleNs(connection.protocol)) yield connection;
    }
  }
}

/** Newest first. */
export async function connectionsOf(
  maps: TrafficMaps,
  config: InterfaceConfig,
  nowNs: bigint,
  limit: number,
): Promise<readonly Connection[]> {
  const found: Connection[] = [];
  for await (const connection of remembered(maps, config, nowNs)) {
    const { lastSeenNs, flags } = connection;
    const origin = (flags & CONNECTION_FLAGS.reply) === 0 ? "egress" : "reply";
    found.push({ ...shown({ ...connection, identity: config.identity }), lastSeenNs, origin });
  }
  return found.sort(newestFirst).slice(0, limit);
}

/** The address that the guest of a slot was seen to have, and where it was seen; null: not yet. */
export function learnedAddressOf(maps: TrafficMaps, slot: number): { address: string; source: string } | null {
  const value = maps.fluxvm_learned.get(wordKey(slot));
  if (value === null) return null;
  const { address, origin } = decodeLearnedAddress(value);
  const source = LEARNED_FROM[origin];
  return source === undefined || source === "none" ? null : { address: formatAddress(4, address), source };
}

function idleNs(protocol: number): bigint {
  const longLived = protocol === TCP || protocol === SCTP;
  return (
    BigInt(longLived ? TCP_IDLE_SECONDS : protocol === UDP ? UDP_IDLE_SECONDS : OTHER_IDLE_SECONDS) * NS_PER_SECOND
  );
}

type Tuple = Pick<
  FlowKey,
  "identity" | "source" | "destination" | "sourcePort" | "destinationPort" | "protocol" | "family"
>;

/** A frame that is not IP has no addresses, and its type for a port: it is shown with those of IPv4, all zero. */
function shown({ identity, source, destination, sourcePort, destinationPort, protocol, family }: Tuple) {
  const shownFamily: Family = family === 6 ? 6 : 4;
  return {
    identity,
    family: shownFamily,
    source: formatAddress(shownFamily, source),
    destination: formatAddress(shownFamily, destination),
    sourcePort,
    destinationPort,
    protocol,
  };
}

/** The elements of a map whose keys begin with an identity. */
async function* elements(map: KernelMap, identity: number | null) {
  for await (const { key, value } of walk(map)) {
    const own = new DataView(key.buffer, key.byteOffset, key.byteLength).getUint32(0, true);
    if (identity === null || own === identity) yield [key, value] as const;
  }
}

function newestFirst(one: { readonly lastSeenNs: bigint }, other: { readonly lastSeenNs: bigint }): number {
  return compare(other.lastSeenNs, one.lastSeenNs);
}

function compare(one: bigint, other: bigint): number {
  return one < other ? -1 : one > other ? 1 : 0;
}
