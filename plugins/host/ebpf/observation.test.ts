// What maps say, as it is told: sums, orders, limits, and whose it is.
import { beforeEach, describe, expect, test } from "bun:test";
import {
  DROP_REASONS,
  decodeInterfaceConfig,
  encodeConnectionBucket,
  encodeConnectionBucketKey,
  encodeDropKey,
  encodeFlowCounters,
  encodeFlowKey,
  encodeInterfaceConfig,
  INTERFACE_CONFIG_BYTES,
  encodeLearnedAddress,
  encodeTraffic,
} from "../../../ffi/layout/bpf.ts";
import { inRoom, parseAddress } from "./addresses.ts";
import { wordKey } from "./kernel-map.ts";
import { dropsOf, flowsOf, learnedAddressOf, trafficOf } from "./observation.ts";
import { interfaceElement } from "./rules.ts";
import { Slots } from "./slots.ts";
import { fakeMaps, networkWith, policyWith } from "./testing/fixtures.ts";

let maps = fakeMaps();

beforeEach(() => {
  maps = fakeMaps();
});

const flowKey = (changes: object = {}) => ({
  identity: 5,
  source: inRoom(parseAddress("10.0.0.1")),
  destination: inRoom(parseAddress("10.0.0.2")),
  sourcePort: 1,
  destinationPort: 2,
  protocol: 6,
  verdict: 1,
  family: 4,
  ...changes,
});

const NO_CONFIG = decodeInterfaceConfig(new Uint8Array(INTERFACE_CONFIG_BYTES));

const counters = (lastSeenNs: bigint, packets = 1n) => encodeFlowCounters({ packets, bytes: 10n, lastSeenNs });

describe("totals", () => {
  test("are the sum over all processors", () => {
    const one = { allowedPackets: 1n, allowedBytes: 2n, droppedPackets: 3n, droppedBytes: 4n };
    const value = Buffer.concat([encodeTraffic(one), encodeTraffic(one), encodeTraffic({ ...one, droppedBytes: 5n })]);
    maps.fluxvm_stats.set(wordKey(9), value);
    expect(trafficOf(maps, 9)).toEqual({ allowedPackets: 3n, allowedBytes: 6n, droppedPackets: 9n, droppedBytes: 13n });
    expect(trafficOf(maps, 8)).toEqual({ allowedPackets: 0n, allowedBytes: 0n, droppedPackets: 0n, droppedBytes: 0n });
  });
});

describe("flows", () => {
  beforeEach(() => {
    for (let at = 1; at <= 5; at++)
      maps.fluxvm_flows.set(encodeFlowKey(flowKey({ sourcePort: at })), counters(BigInt(at)));
    maps.fluxvm_flows.set(encodeFlowKey(flowKey({ identity: 6, verdict: 0 })), counters(9n));
  });

  test("newest first, of one sandbox or of all, as many as asked", async () => {
    const of = async (identity: number | null, limit = 100) =>
      (await flowsOf(maps, { identity, sinceNs: 0n, limit })).map(({ lastSeenNs }) => lastSeenNs);
    expect(await of(5)).toEqual([5n, 4n, 3n, 2n, 1n]);
    expect(await of(null)).toEqual([9n, 5n, 4n, 3n, 2n, 1n]);
    expect(await of(null, 2)).toEqual([9n, 5n]);
    expect(await of(7)).toEqual([]);
  });

  test("packets of connections are added to what earlier ones of the same name came to", async () => {
    const connection = { ...flowKey({ sourcePort: 5 }), policyId: 1, epoch: 1, flags: 0, packets: 2n, bytes: 20n };
    const connections = [
      { ...connection, lastSeenNs: 7n },
      { ...connection, sourcePort: 6, lastSeenNs: 4n },
      { ...connection, sourcePort: 7, lastSeenNs: 8n, packets: 0n },
      ...Array.from({ length: 5 }, () => ({ ...connection, packets: 0n, lastSeenNs: 0n })),
    ];
    const bucket = encodeConnectionBucket({ connections });
    maps.fluxvm_ct.set(encodeConnectionBucketKey({ slot: 3, bucket: 9 }), bucket);
    maps.fluxvm_ct.set(encodeConnectionBucketKey({ slot: 4, bucket: 9 }), bucket);
    maps.fluxvm_iface.set(wordKey(11), encodeInterfaceConfig({ ...NO_CONFIG, slot: 3, identity: 5 }));

    const flows = await flowsOf(maps, { identity: 5, sinceNs: 0n, limit: 2 });

    expect(flows).toMatchObject([
      { sourcePort: 5, packets: 3n, bytes: 30n, lastSeenNs: 7n, verdict: "allow" },
      { lastSeenNs: 4n },
    ]);
    const all = await flowsOf(maps, { identity: 5, sinceNs: 0n, limit: 99 });
    expect(all.map(({ sourcePort }) => sourcePort).toSorted()).toEqual([1, 2, 3, 4, 5, 6]);
  });

  test("since a time", async () => {
    expect(await flowsOf(maps, { identity: null, sinceNs: 5n, limit: 9 })).toMatchObject([
      { verdict: "drop", identity: 6 },
      { verdict: "allow", sourcePort: 5, source: "10.0.0.1", destination: "10.0.0.2" },
    ]);
  });
});

describe("flows of connections", () => {
  const connection = (changes: object = {}) => ({
    ...flowKey({ sourcePort: 77 }),
    lastSeenNs: 20n,
    policyId: 1,
    epoch: 3,
    flags: 0,
    packets: 4n,
    bytes: 400n,
    ...changes,
  });

  beforeEach(() => {
    for (const [ifindex, slot, identity] of [
      [7, 2, 5],
      [8, 3, 6],
    ] as const) {
      const network = networkWith({ hostInterfaceIndex: ifindex });
      const place = { network, slot, connectionEpoch: 3, connectionBuckets: 512, phase: 0, mark: 1 };
      maps.fluxvm_iface.set(wordKey(ifindex), interfaceElement(policyWith({ identity }), 1, place));
    }
    const put = (slot: number, bucket: number, ...connections: ReturnType<typeof connection>[]) =>
      maps.fluxvm_ct.set(encodeConnectionBucketKey({ slot, bucket }), encodeConnectionBucket({ connections }));
    put(
      2,
      9,
      connection(),
      connection({ sourcePort: 78, packets: 0n }),
      connection({ sourcePort: 79, epoch: 2, lastSeenNs: 5n }),
    );
    put(3, 500, connection({ family: 6, source: inRoom(parseAddress("fd00::1")) }));
    // Of an interface that is no more.
    put(4, 0, connection());
  });

  test("are told with the others, of one sandbox or of all, also of an earlier epoch", async () => {
    const of = async (identity: number | null) =>
      (await flowsOf(maps, { identity, sinceNs: 0n, limit: 9 })).map(({ identity, sourcePort }) => [
        identity,
        sourcePort,
      ]);
    expect(await of(5)).toEqual([
      [5, 77],
      [5, 79],
    ]);
    expect(await of(6)).toEqual([[6, 77]]);
    expect(await of(null)).toHaveLength(3);
    expect(await flowsOf(maps, { identity: 6, sinceNs: 0n, limit: 9 })).toMatchObject([
      { verdict: "allow", family: 6, source: "fd00::1", packets: 4n, bytes: 400n, lastSeenNs: 20n },
    ]);
  });

  test("one that is in both places is one flow with the sum of both", async () => {
    maps.fluxvm_flows.set(encodeFlowKey(flowKey({ sourcePort: 77 })), counters(30n, 2n));
    expect(await flowsOf(maps, { identity: 5, sinceNs: 10n, limit: 9 })).toMatchObject([
      { sourcePort: 77, packets: 6n, bytes: 410n, lastSeenNs: 30n },
    ]);
  });
});

describe("denials", () => {
  test("most packets first, then newest, each with its reason", async () => {
    const drop = (changes: object) => encodeDropKey({ ...flowKey({ verdict: 0 }), reason: 5, action: 0, ...changes });
    maps.fluxvm_drops.set(drop({ sourcePort: 1 }), counters(1n, 7n));
    maps.fluxvm_drops.set(drop({ sourcePort: 2, reason: 99, action: 1 }), counters(2n, 7n));
    maps.fluxvm_drops.set(drop({ family: 0, destinationPort: 0x88cc, reason: 11 }), counters(3n, 8n));
    expect(await dropsOf(maps, null, 10)).toMatchObject([
      { reason: "unsupported-ethertype", family: 4, destinationPort: 0x88cc },
      { reason: "unknown", reasonCode: 99, action: "audit" },
      { reason: "l4-miss", reasonCode: 5, action: "drop" },
    ]);
  });

  test("every reason of the wire has its number", () => {
    const wire = { 1: "malformed-l4", 2: "fragmented-l4", 8: "default-deny", 9: "migration-quiesce", 16: "sni-deny" };
    for (const [code, reason] of Object.entries(wire)) expect(DROP_REASONS[Number(code)]).toBe(reason as never);
  });
});

describe("places", () => {
  test("are each once, cleared before use, and free again afterwards", () => {
    const slots = new Slots(maps, [0, 2]);
    maps.fluxvm_learned.set(
      wordKey(1),
      encodeLearnedAddress({ address: Uint8Array.of(1, 2, 3, 4), origin: 1, lastSeenNs: 1n }),
    );
    maps.fluxvm_stats.set(wordKey(1), new Uint8Array(64).fill(7));
    expect(learnedAddressOf(maps, 1)).toEqual({ address: "1.2.3.4", source: "arp" });
    expect([slots.take(), slots.take()]).toEqual([1, 3]);
    expect(learnedAddressOf(maps, 1)).toBeNull();
    expect(trafficOf(maps, 1).allowedPackets).toBe(0n);
  });

  test("come to an end, and a place that was given back is taken", () => {
    const slots = new Slots(maps, []);
    const all = Array.from({ length: 4096 }, () => slots.take());
    expect(new Set(all).size).toBe(4096);
    expect(() => slots.take()).toThrow(expect.objectContaining({ code: "DATAPLANE_FAILED" }));
    slots.give(77, 8);
    expect(slots.take()).toBe(77);
  });
});
