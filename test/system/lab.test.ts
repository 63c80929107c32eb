// The packet laboratory itself: without any policy everything that is sent arrives, both ways and in both families, and a
// laboratory that is taken down leaves nothing.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { ethernet, ETHERTYPE, icmp, joined, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { Lab, WORLD } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

let lab: Lab;

beforeAll(async () => {
  lab = await Lab.make({ guests: 2 });
});

afterAll(() => lab[Symbol.asyncDispose]());

test("packets of a guest reach the world as they are, in both families", async () => {
  const guest = lab.guest();
  for (const [source, destination] of [
    [guest.ipv4, WORLD.ipv4],
    [guest.ipv6, WORLD.ipv6],
  ] as const) {
    const frame = guest.frame({ source, destination, protocol: PROTOCOL.tcp }, tcp(4000, 443, TCP.syn));
    const [arrival, ...more] = await guest.exchange(frame, lab.world);
    expect(more).toEqual([]);
    expect(arrival).toMatchObject({ source, destination, sourcePort: 4000, destinationPort: 443, tcpFlags: TCP.syn });
  }
});

test("packets of the world reach the guest that they are for", async () => {
  const [guest, other] = [lab.guest(0), lab.guest(1)];
  const frame = lab.world.frame({ source: WORLD.ipv4, destination: guest.ipv4, protocol: PROTOCOL.udp }, udp(53, 4000));
  other.wire.arrivals.length = 0;
  expect(await lab.world.exchange(frame, guest)).toHaveLength(1);
  expect(other.seen()).toEqual([]);
});

test("the router's kernel answers with a checksum that is right", async () => {
  const guest = lab.guest();
  const { gateway4, gateway6 } = guest.addresses;
  const ping4 = guest.frame({ source: guest.ipv4, destination: gateway4, protocol: PROTOCOL.icmp }, icmp(8));
  expect(await guest.exchange(ping4, guest)).toMatchObject([{ source: gateway4, icmpType: 0 }]);
  const ping6 = guest.frame({ source: guest.ipv6, destination: gateway6, protocol: PROTOCOL.icmp6 }, icmp(128));
  expect(await guest.exchange(ping6, guest)).toMatchObject([{ source: gateway6, icmpType: 129 }]);
});

test("a tagged frame and a frame of no known type are seen as they were sent", async () => {
  const guest = lab.guest();
  const router = lab.routerWire();
  for (const type of [ETHERTYPE.vlan, 0x9999]) {
    const frame = ethernet(guest.routerMac, guest.mac, type, joined([0, 5, 8, 0], new Uint8Array(60).fill(7)));
    router.arrivals.length = 0;
    await guest.wire.send(frame);
    const arrival = await router.until(({ ethertype }) => ethertype === type);
    expect(arrival.frame.toHex()).toBe(frame.toHex());
  }
});

test("a frame that stands for many segments arrives as segments or as one, with all bytes", async () => {
  const guest = lab.guest();
  const body = "x".repeat(10_000);
  const head = { source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.tcp };
  lab.world.wire.arrivals.length = 0;
  await guest.wire.sendSegments(guest.frame(head, tcp(4001, 443, TCP.ack, body)), 1000);
  await lab.settle();
  const sizes = lab.world.wire.arrivals
    .filter(({ protocol }) => protocol === PROTOCOL.tcp)
    .map(({ bytes }) => bytes - 54);
  expect(sizes.reduce((sum, bytes) => sum + bytes, 0)).toBe(body.length);
});

test("a flood is counted to the last frame", async () => {
  const guest = lab.guest();
  const to = (port: number) =>
    guest.frame({ source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(5000, port));
  await lab.world.wire.count();
  const flood = { frames: [to(1001), to(1002)], perSecond: 20_000, count: 10_000, freshFlows: true };
  expect(await guest.wire.flood(flood)).toEqual({ sent: 10_000, failed: 0 });
  await lab.pause();
  const counted = await lab.world.wire.counted();
  expect([counted.get("4/17/1001"), counted.get("4/17/1002")]).toEqual([5_000, 5_000]);
});

test("what is taken down leaves no namespace", async () => {
  const passing = await Lab.make();
  const name = passing.router;
  await passing[Symbol.asyncDispose]();
  expect(await outputOf(["ip", "netns", "list"])).not.toContain(name);
});

test("guests on a bridge reach each other and the world", async () => {
  await using bridged = await Lab.make({ guests: 2, hook: "bridged" });
  const [one, two] = [bridged.guest(0), bridged.guest(1)];
  expect(await one.reaches({ destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(true);
  const direct = ethernet(two.mac, one.mac, ETHERTYPE.experiment, new Uint8Array(50));
  two.wire.arrivals.length = 0;
  await one.wire.send(direct);
  expect(await two.wire.until(({ frame }) => frame.toHex() === direct.toHex())).toBeDefined();
});
