// Connections out of one set of maps and into another, and documents that are refused.
import { describe, expect, test } from "bun:test";
import {
  decodeInterfaceConfig,
  encodeConnectionBucket,
  encodeConnectionBucketKey,
  type InterfaceConfig,
} from "../../../ffi/layout/bpf.ts";
import type { JsonObject } from "../../../src/contracts/json.ts";
import { inRoom, parseAddress } from "./addresses.ts";
import { bucketOf, exportConnections, importConnections } from "./migration.ts";
import { connectionsOf } from "./observation.ts";
import { interfaceElement } from "./rules.ts";
import { fakeMaps, networkWith, policyWith } from "./testing/fixtures.ts";

const NOW = 10_000_000_000_000n;
const from = { sandboxId: "one", identity: 0x1000_0001, schemaVersion: 1, policyFingerprint: "aa" };

function config(epoch: number, policyId = 4): InterfaceConfig {
  const place = { network: networkWith(), slot: 2, connectionEpoch: epoch, connectionBuckets: 16, phase: 0, mark: 1 };
  return decodeInterfaceConfig(interfaceElement(policyWith(), policyId, place));
}

const entry = (changes: JsonObject = {}): JsonObject => ({
  family: 4,
  source: "169.254.0.19",
  destination: "192.0.2.1",
  source_port: 40_000,
  destination_port: 443,
  protocol: 6,
  reply: false,
  greeted: true,
  ...changes,
});

const document = (connections: unknown, changes: JsonObject = {}): JsonObject =>
  ({
    version: 1,
    sandbox_id: "one",
    identity: 0x1000_0001,
    schema_version: 1,
    policy_fingerprint: "aa",
    connections,
    ...changes,
  }) as JsonObject;

describe("there and back", () => {
  test("what goes in comes out, under the epoch and policy of the other side", async () => {
    const entries = [
      entry(),
      entry({ family: 6, source: "fd00::3", destination: "2001:db8::1", reply: true, protocol: 17, greeted: false }),
      ...Array.from({ length: 40 }, (_, at) => entry({ source_port: 1000 + at })),
    ];
    const one = fakeMaps();
    importConnections(one, config(5), from, document(entries), NOW);
    const exported = await exportConnections(one, config(5), from, NOW + 1n);
    const other = fakeMaps();
    importConnections(other, config(6, 9), from, exported, NOW);
    const found = await connectionsOf(other, config(6, 9), NOW + 1n, 100);
    expect(found).toHaveLength(42);
    expect(found.filter(({ family }) => family === 6)).toMatchObject([
      { source: "fd00::3", origin: "reply", lastSeenNs: NOW, identity: 0x1000_0001 },
    ]);
  });

  test("the same connection twice is one, and a full bucket loses its oldest", async () => {
    const maps = fakeMaps();
    const only = { ...config(5), ctBuckets: 1 };
    importConnections(maps, only, from, document([entry(), entry()]), NOW);
    expect(await connectionsOf(maps, only, NOW, 100)).toHaveLength(1);
    const many = Array.from({ length: 9 }, (_, at) => entry({ source_port: at + 1 }));
    importConnections(maps, only, from, document(many), NOW + 5n);
    const left = await connectionsOf(maps, only, NOW + 6n, 100);
    expect(left).toHaveLength(8);
    expect(left.every(({ lastSeenNs }) => lastSeenNs === NOW + 5n)).toBe(true);
  });

  test("expired ones, and those of another epoch or policy, are none", async () => {
    const maps = fakeMaps();
    importConnections(maps, config(5), from, document([entry()]), NOW);
    expect(await connectionsOf(maps, config(5), NOW + 7_199n * 1_000_000_000n, 9)).toHaveLength(1);
    expect(await connectionsOf(maps, config(5), NOW + 7_200n * 1_000_000_000n, 9)).toHaveLength(0);
    expect(await connectionsOf(maps, config(6), NOW, 9)).toHaveLength(0);
    expect(await connectionsOf(maps, config(5, 8), NOW, 9)).toHaveLength(0);
  });

  test("buckets are those of the programs", () => {
    const connection = {
      source: inRoom(parseAddress("10.0.0.1")),
      destination: inRoom(parseAddress("10.0.0.2")),
      sourcePort: 1,
      destinationPort: 2,
      protocol: 6,
      family: 4,
      lastSeenNs: 0n,
      policyId: 0,
      epoch: 0,
      flags: 0,
      packets: 0n,
      bytes: 0n,
    };
    // By the same steps with another arithmetic.
    let hash = 77n;
    const words = [0x0100_000an, 0n, 0x0200_000an, 0n, 0x0000_0406_0002_0001n];
    for (const word of words) {
      hash = BigInt.asUintN(64, (hash ^ word) * 0x9e3779b97f4a7c15n);
      hash ^= hash >> 32n;
    }
    expect(bucketOf({ ctEpoch: 77, ctBuckets: 512 }, connection)).toBe(Number(hash % 512n));
  });
});

describe("refused before anything is written", () => {
  const manyMore = Array(32_769).fill(entry());
  test.each([
    ["another version", document([], { version: 2 })],
    ["another sandbox", document([], { sandbox_id: "two" })],
    ["another identity", document([], { identity: 7 })],
    ["another layout", document([], { schema_version: 2 })],
    ["another policy", document([], { policy_fingerprint: "bb" })],
    ["no list", document({})],
    ["too many", document(manyMore)],
    ["one bad entry behind a good one", document([entry(), entry({ source: "10.0.0" })])],
    ["an address of another family", document([entry({ destination: "fd00::1" })])],
    ["family 5", document([entry({ family: 5 })])],
    ["a port that is none", document([entry({ source_port: 65_536 })])],
    ["a protocol that is none", document([entry({ protocol: 1.5 })])],
    ["a flag that is none", document([entry({ reply: 1 })])],
    ["null", document([null])],
  ])("%s", (_, refused) => {
    const maps = fakeMaps();
    expect(() => importConnections(maps, config(5), from, refused, NOW)).toThrow(
      expect.objectContaining({ code: "BAD_REQUEST" }),
    );
    expect(maps.fluxvm_ct.elements.size).toBe(0);
  });

  test("what others left in a bucket stays", () => {
    const maps = fakeMaps();
    const key = encodeConnectionBucketKey({ slot: 2, bucket: 3 });
    maps.fluxvm_ct.set(key, encodeConnectionBucket({ connections: [] }));
    expect(() => importConnections(maps, config(5), from, document([null]), NOW)).toThrow();
    expect(maps.fluxvm_ct.elements.size).toBe(1);
  });
});
