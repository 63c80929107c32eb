// Connections of one sandbox as a document, for the host where it goes on. A document is judged as a whole before any of it
// is believed: it comes from another host, by way of a client.
import {
  type Connection,
  CONNECTION_FLAGS,
  decodeConnectionBucket,
  encodeConnection,
  encodeConnectionBucket,
  encodeConnectionBucketKey,
  type InterfaceConfig,
} from "../../../ffi/layout/bpf.ts";
import type { JsonObject } from "../../../src/contracts/json.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import { formatAddress, inRoom, parseAddress } from "./addresses.ts";
import type { TrafficMaps } from "./kernel-map.ts";
import { remembered } from "./observation.ts";

const VERSION = 1;
const CONNECTIONS_MAX = 32_768;
const TUPLE_BYTES = 40;
const MIX = 0x9e37_79b9_7f4a_7c15n;
const MASK = 0xffff_ffff_ffff_ffffn;
const NOTHING: Connection = {
  source: new Uint8Array(16),
  destination: new Uint8Array(16),
  sourcePort: 0,
  destinationPort: 0,
  protocol: 0,
  family: 0,
  lastSeenNs: 0n,
  policyId: 0,
  epoch: 0,
  flags: 0,
  packets: 0n,
  bytes: 0n,
};

/** What a document must say to be for this sandbox, and for the policy that is in force here. */
export interface MigratedFrom {
  readonly sandboxId: string;
  readonly identity: number;
  readonly schemaVersion: number;
  readonly policyFingerprint: string;
}

/** The connections that are known at `nowNs`, by the monotonic clock, as a document for another host. */
export async function exportConnections(
  maps: TrafficMaps,
  config: InterfaceConfig,
  from: MigratedFrom,
  nowNs: bigint,
): Promise<JsonObject> {
  const connections: JsonObject[] = [];
  for await (const connection of remembered(maps, config, nowNs)) {
    const family = connection.family === 6 ? 6 : 4;
    connections.push({
      family,
      source: formatAddress(family, connection.source),
      destination: formatAddress(family, connection.destination),
      source_port: connection.sourcePort,
      destination_port: connection.destinationPort,
      protocol: connection.protocol,
      reply: (connection.flags & CONNECTION_FLAGS.reply) !== 0,
      greeted: (connection.flags & CONNECTION_FLAGS.greeted) !== 0,
    });
  }
  return { ...head(from), connections };
}

/**
 * Puts the connections of a document into the maps, as seen now. Throws `BAD_REQUEST` before anything is written when it
 * is not one, or is of another sandbox, layout or policy.
 */
export function importConnections(
  maps: TrafficMaps,
  config: InterfaceConfig,
  here: MigratedFrom,
  document: JsonObject,
  nowNs: bigint,
): void {
  for (const [name, value] of Object.entries(head(here))) {
    if (document[name] !== value) throw refused(`${name} is not that of this sandbox here`);
  }
  const { connections } = document;
  if (!Array.isArray(connections)) throw refused("connections is not a list");
  if (connections.length > CONNECTIONS_MAX) throw refused(`more than ${CONNECTIONS_MAX} connections`);
  const believed = connections.map((entry, at) => connectionOf(entry, at, config, nowNs));
  for (const connection of believed) remember(maps, config, connection);
}

/** The bucket that the programs look in. */
export function bucketOf(config: Pick<InterfaceConfig, "ctEpoch" | "ctBuckets">, connection: Connection): number {
  const tuple = encodeConnection(connection).subarray(0, TUPLE_BYTES);
  const view = new DataView(tuple.buffer, tuple.byteOffset, tuple.byteLength);
  let hash = BigInt(config.ctEpoch);
  for (let at = 0; at < TUPLE_BYTES; at += 8) {
    hash = ((hash ^ view.getBigUint64(at, true)) * MIX) & MASK;
    hash ^= hash >> 32n;
  }
  return Number(hash & BigInt(config.ctBuckets - 1));
}

function remember(maps: TrafficMaps, config: InterfaceConfig, connection: Connection): void {
  if (config.ctBuckets === 0) return;
  const key = encodeConnectionBucketKey({ slot: config.slot, bucket: bucketOf(config, connection) });
  const value = maps.fluxvm_ct.get(key);
  const present = value === null ? Array<Connection>(8).fill(NOTHING) : [...decodeConnectionBucket(value).connections];
  const inUse = (one: Connection): boolean => one.epoch === config.ctEpoch;
  const age = (one: Connection): bigint => (inUse(one) ? one.lastSeenNs : -1n);
  const same = present.findIndex((one) => inUse(one) && isSameTuple(one, connection));
  const oldest = present.reduce((best, one, at) => (age(one) < age(present[best] ?? one) ? at : best), 0);
  present[same < 0 ? oldest : same] = connection;
  maps.fluxvm_ct.set(key, encodeConnectionBucket({ connections: present }));
}

function isSameTuple(one: Connection, other: Connection): boolean {
  return Buffer.from(encodeConnection(one).subarray(0, TUPLE_BYTES)).equals(
    encodeConnection(other).subarray(0, TUPLE_BYTES),
  );
}

function connectionOf(entry: unknown, at: number, config: InterfaceConfig, nowNs: bigint): Connection {
  const wrong = (what: string): AgentError => refused(`connection ${at}: ${what}`);
  if (typeof entry !== "object" || entry === null) throw wrong("not an object");
  const field = (name: string): unknown => Reflect.get(entry, name);
  const number = (name: string, max: number): number => {
    const value = field(name);
    if (typeof value !== "number" || !Number.isInteger(value) || value < 0 || value > max) throw wrong(name);
    return value;
  };
  const flag = (name: string): boolean => {
    const value = field(name);
    if (typeof value !== "boolean") throw wrong(name);
    return value;
  };
  const family = number("family", 6);
  if (family !== 4 && family !== 6) throw wrong("family");
  const address = (name: string): Uint8Array => {
    const value = field(name);
    try {
      const bytes = parseAddress(typeof value === "string" ? value : "");
      if (bytes.length !== (family === 4 ? 4 : 16)) throw wrong(name);
      return inRoom(bytes);
    } catch {
      throw wrong(name);
    }
  };
  return {
    source: address("source"),
    destination: address("destination"),
    sourcePort: number("source_port", 65_535),
    destinationPort: number("destination_port", 65_535),
    protocol: number("protocol", 255),
    family,
    lastSeenNs: nowNs,
    policyId: config.policyId,
    epoch: config.ctEpoch,
    flags: (flag("reply") ? CONNECTION_FLAGS.reply : 0) | (flag("greeted") ? CONNECTION_FLAGS.greeted : 0),
    packets: 0n,
    bytes: 0n,
  };
}

function head({ sandboxId, identity, schemaVersion, policyFingerprint }: MigratedFrom) {
  return {
    version: VERSION,
    sandbox_id: sandboxId,
    identity,
    schema_version: schemaVersion,
    policy_fingerprint: policyFingerprint,
  };
}

function refused(what: string): AgentError {
  return new AgentError("BAD_REQUEST", `the document of connections is refused: ${what}`);
}
