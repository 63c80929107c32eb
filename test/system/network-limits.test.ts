// Budgets of packets and bytes, with real packets, large frames that count as what they are cut into, and which packets
// become events.
import { beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import { EbpfLab } from "../harness/ebpf-lab.ts";
import { PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

const RATE_LIMIT = 7;

const place = EbpfLab.ofSuite();
const { enforce } = place;

function datagram(port: number, bytes = 22): Uint8Array {
  const guest = place.guest();
  return guest.frame(
    { source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.udp },
    udp(9_000, port, "x".repeat(bytes)),
  );
}

/** Two that this process may use, where there are two. */
async function processors(): Promise<number[]> {
  const list = /^Cpus_allowed_list:\s*(\S+)$/m.exec(await readFile("/proc/self/status", "utf8"))?.[1] ?? "0";
  const all = list.split(",").flatMap((range) => {
    const [first = 0, last = first] = range.split("-").map(Number);
    return Array.from({ length: last - first + 1 }, (_, index) => first + index);
  });
  return all.slice(0, 2);
}

/** Frames that arrived of `count` that were sent, and how long that took. */
async function flood(frames: readonly Uint8Array[], perSecond: number, count: number) {
  await place.lab.world.wire.count();
  const before = performance.now();
  await place.guest().wire.flood({ frames, perSecond, count });
  const seconds = (performance.now() - before) / 1_000;
  await place.lab.pause();
  const counted = [...(await place.lab.world.wire.counted())].filter(([key]) => key.startsWith("4/17/"));
  return { seconds, arrived: counted.reduce((sum, [, frames]) => sum + frames, 0) };
}

test("packets a second: a second's worth at once, then as many as the rate gives", async () => {
  const rate = 100;
  await enforce({ packetsPerSecond: rate });
  const { arrived, seconds } = await flood([datagram(7)], 2_000, 4_000);
  expect(arrived).toBeGreaterThanOrEqual(rate);
  expect(arrived).toBeLessThanOrEqual(rate * (seconds + 1) * 1.05 + 1);
  const denials = await place.dataplane.drops(place.guest());
  expect(denials.find(({ reasonCode }) => reasonCode === RATE_LIMIT)?.packets).toBeGreaterThan(0n);
});

test("a budget is one for all processors together, and so are totals", async () => {
  const rate = 100;
  await enforce({ packetsPerSecond: rate });
  await Bun.sleep(1_100);
  const [guest, lab] = [place.guest(), place.lab];
  const senders = await Promise.all((await processors()).map((processor) => lab.sender(guest, processor)));
  const before = await place.dataplane.stats(guest);
  await lab.world.wire.count();
  const beganMs = performance.now();
  const each = { frames: [datagram(7)], perSecond: 2_000, count: 4_000 };
  const floods = await Promise.all(senders.map((sender) => sender.flood(each)));
  const seconds = (performance.now() - beganMs) / 1_000;
  await lab.pause();
  const arrived = (await lab.world.wire.counted()).get("4/17/7") ?? 0;
  expect(arrived).toBeGreaterThanOrEqual(rate);
  expect(arrived).toBeLessThanOrEqual(rate * (seconds + 1) * 1.05 + 1);
  const after = await place.dataplane.stats(guest);
  const dropped = Number(after.droppedPackets - before.droppedPackets);
  expect([Number(after.allowedPackets - before.allowedPackets), dropped]).toEqual([
    arrived,
    floods.reduce((sum, { sent }) => sum + sent, 0) - arrived,
  ]);
});

test("one packet a second: the first passes, the second does not, and after a second one does", async () => {
  await enforce({ packetsPerSecond: 1 });
  await Bun.sleep(1_100);
  const packet = { destination: WORLD.ipv4, protocol: PROTOCOL.udp };
  expect(await place.guest().reaches(packet, udp(9_001, 7))).toBe(true);
  expect(await place.guest().reaches(packet, udp(9_001, 7))).toBe(false);
  await Bun.sleep(1_100);
  expect(await place.guest().reaches(packet, udp(9_001, 7))).toBe(true);
});

test("bytes a second are those of whole frames", async () => {
  const frame = datagram(7, 958);
  expect(frame.length).toBe(1_000);
  await enforce({ bytesPerSecond: 125_000 });
  const { arrived, seconds } = await flood([frame], 1_000, 2_000);
  expect(arrived).toBeGreaterThanOrEqual(125);
  expect(arrived).toBeLessThanOrEqual(125 * (seconds + 1) * 1.05 + 1);
});

// Defect m: a large frame counted as one packet.
test("a frame that stands for many packets counts as many", async () => {
  const guest = place.guest();
  const head = { source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.tcp };
  const large = () => guest.frame(head, tcp(9_002, 443, TCP.ack, "x".repeat(20_000)));
  await enforce({ packetsPerSecond: 50 });
  await Bun.sleep(1_100);
  place.lab.world.wire.arrivals.length = 0;
  const began = performance.now();
  for (let turn = 0; turn < 10; turn++) await guest.wire.sendSegments(large(), 1_000);
  await place.lab.settle();
  const seconds = (performance.now() - began) / 1_000;
  // Of 200 packets in ten frames, as many as the budget had and got meanwhile.
  const bytes = place.lab.world.seen().reduce((sum, { frame }) => sum + frame.length - 54, 0);
  expect(bytes).toBeGreaterThanOrEqual(20_000);
  expect(bytes).toBeLessThanOrEqual(1_000 * 50 * (seconds + 1));
});

test("without a limit nothing is held back", async () => {
  await enforce({});
  expect((await flood([datagram(7)], 20_000, 10_000)).arrived).toBe(10_000);
});

describe("events", () => {
  /** Those that came while `count` packets were sent. */
  async function eventsOf(frame: Uint8Array, count: number) {
    // What was denied before is told first, however much that is.
    do await Bun.sleep(50);
    while ((await place.dataplane.events()).length > 0);
    await place.guest().wire.flood({ frames: [frame], perSecond: 10_000, count });
    await place.lab.settle();
    await Bun.sleep(100);
    return await place.dataplane.events();
  }

  beforeAll(() => place.dataplane.watchEvents());

  test("one in so many packets that are allowed is an event, and every one that is denied", async () => {
    await enforce({ sampleRate: 10 });
    const sampled = await eventsOf(datagram(7), 4_000);
    // Five deviations of a binomial distribution to either side.
    expect(sampled.length).toBeGreaterThan(400 - 5 * 19);
    expect(sampled.length).toBeLessThan(400 + 5 * 19);
    await enforce({ defaultAllow: false });
    const denials = await eventsOf(datagram(7), 200);
    expect(denials).toHaveLength(200);
    expect(denials[0]).toMatchObject({ verdict: 0, reason: 8 });
  });

  // Defect h: the flag of the audit taken for a part of the rate.
  test("without sampling nothing that is allowed is an event, DHCP under audit neither", async () => {
    const guest = place.guest();
    const everybody = { source: "0.0.0.0", destination: "255.255.255.255", protocol: PROTOCOL.udp };
    const dhcp = guest.frame(everybody, udp(68, 67));
    for (const audit of [true, false]) {
      await enforce({ audit, sampleRate: 0 });
      expect(await eventsOf(dhcp, 20)).toEqual([]);
      expect(await eventsOf(datagram(7), 500)).toEqual([]);
    }
    await enforce({ audit: true, sampleRate: 1 });
    expect(await eventsOf(datagram(7), 50)).toHaveLength(50);
  });
});
