// Another policy while packets flow: none that both deny passes and none that both allow is lost, also when the agent is
// killed in the middle or is not there at all.
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { DataplaneUnderTest, policyOf } from "../harness/dataplane.ts";
import { PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { Lab, WORLD } from "../harness/lab.ts";

setDefaultTimeout(120_000);

/** Allowed by both policies, by one, by the other, by none. */
const PORTS = { both: 2000, one: 2001, other: 2002, none: 2003 };
const TOGGLES = 1_000;

let lab: Lab;
let dataplane: DataplaneUnderTest;

beforeEach(async () => {
  lab = await Lab.make();
  dataplane = await DataplaneUnderTest.start(lab, { plugin: "ebpf" });
  await dataplane.attach(lab.guest(), allowing("one"));
});

afterEach(async () => {
  await dataplane[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

function allowing(which: "one" | "other"): EffectivePolicy {
  const ports = [PORTS.both, PORTS[which]];
  const allowPorts = ports.flatMap((port) => [{ protocol: "udp", port } as const, { protocol: "tcp", port } as const]);
  // Ranges, too, so that an update has all kinds of rules to replace.
  return policyOf(lab.guest(), { allowPorts, allowCidrs: ["198.51.100.0/24", "2001:db8::/64"] });
}

/** Both families, all four ports; a source port of its own for each kind of frame. */
function frames(payload: (port: number) => Uint8Array, protocol: number): Uint8Array[] {
  const guest = lab.guest();
  return Object.values(PORTS).flatMap((port) => [
    guest.frame({ source: guest.ipv4, destination: WORLD.ipv4, protocol }, payload(port)),
    guest.frame({ source: guest.ipv6, destination: WORLD.ipv6, protocol }, payload(port)),
  ]);
}

test.each([
  ["new flows", true],
  ["flows that are known", false],
] as const)("1,000 policies under a flood of %s", async (_, freshFlows) => {
  const guest = lab.guest();
  const flooding = frames((port) => udp(9_000, port), PROTOCOL.udp);
  // Longer than the policies take, and then cut off: nobody knows how fast this machine is.
  const perSecond = 8_000;
  await lab.world.wire.count();
  const took: number[] = [];
  let sent = 0;
  while (took.length < TOGGLES) {
    const flood = guest.wire.flood({ frames: flooding, perSecond, count: perSecond, freshFlows });
    took.push(...(await dataplane.toggle(guest, [allowing("other"), allowing("one")], 250)));
    const done = await flood;
    expect(done.failed).toBe(0);
    sent += done.sent;
  }
  await lab.pause();
  const counted = await lab.world.wire.counted();
  const each = sent / flooding.length;
  for (const family of [4, 6]) {
    expect(counted.get(`${family}/17/${PORTS.both}`)).toBe(each);
    expect(counted.get(`${family}/17/${PORTS.none}`)).toBeUndefined();
    for (const sometimes of [PORTS.one, PORTS.other]) {
      const passed = counted.get(`${family}/17/${sometimes}`) ?? 0;
      expect(passed).toBeGreaterThan(0);
      expect(passed).toBeLessThan(each);
    }
  }
});

test("an established connection that both policies allow is never interrupted", async () => {
  const guest = lab.guest();
  const head = { source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.tcp };
  expect(await guest.exchange(guest.frame(head, tcp(9_100, PORTS.both, TCP.syn)), lab.world)).toHaveLength(1);
  await lab.world.wire.count();
  const data = guest.frame(head, tcp(9_100, PORTS.both, TCP.ack | TCP.push, "data"));
  const flood = guest.wire.flood({ frames: [data], perSecond: 5_000, count: 5_000 });
  await dataplane.toggle(guest, [allowing("other"), allowing("one")], 200);
  const { sent } = await flood;
  await lab.pause();
  expect((await lab.world.wire.counted()).get(`4/6/${PORTS.both}`)).toBe(sent);
});

test("an agent that is killed while it replaces policies leaves one of them whole, and the next makes it its own", async () => {
  const guest = lab.guest();
  const flooding = frames((port) => udp(9_000, port), PROTOCOL.udp);
  for (let round = 0; round < 5; round++) {
    await lab.world.wire.count();
    const flood = guest.wire.flood({ frames: flooding, perSecond: 8_000, count: 6_400, freshFlows: true });
    // Cut off by the kill.
    const toggling = dataplane.toggle(guest, [allowing("other"), allowing("one")], 100_000).catch(() => null);
    await Bun.sleep(150 + round * 37);
    await dataplane.kill();
    await toggling;
    const { sent } = await flood;
    await lab.pause();
    const counted = await lab.world.wire.counted();
    for (const family of [4, 6]) {
      expect(counted.get(`${family}/17/${PORTS.both}`)).toBe(sent / flooding.length);
      expect(counted.get(`${family}/17/${PORTS.none}`)).toBeUndefined();
    }
    await dataplane.start();
    const wanted = allowing("one");
    const report = await dataplane.repair([dataplane.requestOf(guest, wanted)]);
    expect(report.failed).toEqual([]);
    expect(await dataplane.attachment(guest)).toMatchObject({ attached: true, policyFingerprint: wanted.fingerprint });
    expect(await reaches(PORTS.one)).toBe(true);
    expect(await reaches(PORTS.other)).toBe(false);
  }
});

test("an agent that ended left its policies in force", async () => {
  await dataplane.kill();
  expect(await reaches(PORTS.one)).toBe(true);
  expect(await reaches(PORTS.none)).toBe(false);
});

function reaches(port: number): Promise<boolean> {
  const packet = { destination: WORLD.ipv4, protocol: PROTOCOL.tcp };
  return lab.guest().reaches(packet, tcp(9_200 + port, port, TCP.syn));
}
