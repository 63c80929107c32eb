// Several sandboxes under policies of their own: none is decided about by the policy of another, none uses up what is
// another's, and whoever has no policy of ours is left alone.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { DataplaneUnderTest, policyOf } from "../harness/dataplane.ts";
import { PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { type Guest, Lab, WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

let lab: Lab;
let dataplane: DataplaneUnderTest;

beforeAll(async () => {
  lab = await Lab.make({ guests: 3 });
  dataplane = await DataplaneUnderTest.start(lab, { plugin: "ebpf" });
});

afterAll(async () => {
  await dataplane[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

const only = (guest: Guest, port: number) => policyOf(guest, { allowPorts: [{ protocol: "tcp", port }] });
const syn = (guest: Guest, destination: string, port: number) =>
  guest.reaches({ destination, protocol: PROTOCOL.tcp }, tcp(10_000 + port, port, TCP.syn));

// Defect a: a chain for one guest that drops what others send.
test("two restricted sandboxes and one of somebody else's, each as it is meant", async () => {
  const [one, two, other] = [lab.guest(0), lab.guest(1), lab.guest(2)];
  await dataplane.attach(one, only(one, 1001));
  await dataplane.attach(two, only(two, 1002));
  for (const destination of [WORLD.ipv4, WORLD.ipv6]) {
    expect([await syn(one, destination, 1001), await syn(one, destination, 1002)]).toEqual([true, false]);
    expect([await syn(two, destination, 1001), await syn(two, destination, 1002)]).toEqual([false, true]);
    expect([await syn(other, destination, 1001), await syn(other, destination, 1003)]).toEqual([true, true]);
  }
});

test("a change of one policy, and the end of one sandbox, is nothing to the other", async () => {
  const [one, two] = [lab.guest(0), lab.guest(1)];
  await dataplane.setPolicy(one, policyOf(one, { defaultAllow: false }));
  expect([await syn(one, WORLD.ipv4, 1001), await syn(two, WORLD.ipv4, 1002)]).toEqual([false, true]);
  await dataplane.detach(one);
  expect([await syn(two, WORLD.ipv4, 1001), await syn(two, WORLD.ipv4, 1002)]).toEqual([false, true]);
  await dataplane.attach(one, only(one, 1001));
  expect([await syn(one, WORLD.ipv4, 1001), await syn(one, WORLD.ipv4, 1002)]).toEqual([true, false]);
});

test("totals, flows and connections are each one's own", async () => {
  const [one, two] = [lab.guest(0), lab.guest(1)];
  const before = await dataplane.stats(two);
  await syn(one, WORLD.ipv4, 1001);
  expect(await dataplane.stats(two)).toEqual(before);
  const identities = (rows: readonly { readonly identity: number }[]) => [
    ...new Set(rows.map(({ identity }) => identity)),
  ];
  expect(identities(await dataplane.flows(one))).toEqual([policyOf(one).identity]);
  expect(identities(await dataplane.flows(two))).toEqual([policyOf(two).identity]);
  const ports = (await dataplane.connections(two)).map(({ destinationPort }) => destinationPort);
  expect(ports).not.toContain(1001);
});

test("one that opens connections without end takes none of another's", async () => {
  const [one, two] = [lab.guest(0), lab.guest(1)];
  const known = two.frame(
    { source: two.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.tcp },
    tcp(11_000, 1002, TCP.ack),
  );
  await syn(two, WORLD.ipv4, 1002);
  await two.exchange(known, lab.world);
  await dataplane.setPolicy(one, policyOf(one));
  const head = { source: one.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.udp };
  const frames = Array.from({ length: 8 }, (_, index) => one.frame(head, udp(1_024, 100 + index)));
  await one.wire.flood({ frames, perSecond: 40_000, count: 40_000, freshFlows: true });
  await lab.pause();
  const still = (await dataplane.connections(two)).some(({ sourcePort }) => sourcePort === 11_000);
  expect(still).toBe(true);
  expect((await dataplane.connections(one)).length).toBeLessThanOrEqual(4_096);
});
