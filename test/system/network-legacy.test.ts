// Policies as nftables tables, with real packets: what is allowed and what is not, two restricted guests that leave each other
// and everybody else alone, answers to connections from outside, and policies that change under open connections.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { tableScript } from "../../plugins/dataplane-legacy/table.ts";
import { applyNft } from "../../plugins/host/nft.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { DataplaneUnderTest, policyOf } from "../harness/dataplane.ts";
import { ETHERTYPE, ethernet, icmp, internet, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { type Guest, Lab, WORLD } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const { ipv4, ipv6 } = WORLD;
const ELSEWHERE = "203.0.113.9";

let lab: Lab;
let dataplane: DataplaneUnderTest;

const syn = (guest: Guest, destination: string, port: number): Promise<boolean> =>
  guest.reaches({ destination, protocol: PROTOCOL.tcp }, tcp(40_000, port, TCP.syn));
const rules = () => outputOf(lab.inRouter(["nft", "-s", "list", "ruleset"]));

beforeAll(async () => {
  lab = await Lab.make({ guests: 3 });
  dataplane = await DataplaneUnderTest.start(lab, { plugin: "legacy" });
});

afterAll(async () => {
  await dataplane[Symbol.asyncDispose]();
  await lab[Symbol.asyncDispose]();
});

describe("one guest", () => {
  test("a policy that allows everything lets everything out, marked", async () => {
    const guest = lab.guest();
    await dataplane.attach(guest, policyOf(guest));
    expect(await syn(guest, ipv4, 443)).toBe(true);
    expect(await syn(guest, ipv6, 443)).toBe(true);
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.icmp }, icmp(8))).toBe(true);
  });

  test("a policy that allows nothing lets nothing out", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { defaultAllow: false }));
    expect(await syn(guest, ipv4, 443)).toBe(false);
    expect(await syn(guest, ipv6, 443)).toBe(false);
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.icmp }, icmp(8))).toBe(false);
  });

  test("destinations and ports are both asked for", async () => {
    const guest = lab.guest();
    const allowPorts = [
      { protocol: "tcp", port: 443 },
      { protocol: "udp", port: 53 },
    ] as const;
    const allowed = { allowCidrs: ["198.51.100.0/24", "2001:db8::/64"], allowPorts };
    await dataplane.setPolicy(guest, policyOf(guest, allowed));
    expect(await syn(guest, ipv4, 443)).toBe(true);
    expect(await syn(guest, ipv6, 443)).toBe(true);
    expect(await syn(guest, ipv4, 80)).toBe(false);
    expect(await syn(guest, ELSEWHERE, 443)).toBe(false);
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 53))).toBe(true);
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 443))).toBe(false);
  });

  test("destinations of one family allow none of the other", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["198.51.100.0/24"] }));
    expect(await syn(guest, ipv4, 9)).toBe(true);
    expect(await syn(guest, ipv6, 9)).toBe(false);
  });

  test("destinations that turned out to be none allow none", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: [] }));
    expect(await syn(guest, ipv4, 443)).toBe(false);
  });

  test("the metadata address is reached only when exactly it is allowed", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["0.0.0.0/0"] }));
    expect(await syn(guest, "169.254.169.254", 80)).toBe(false);
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["169.254.169.254/32"] }));
    expect(await syn(guest, "169.254.169.254", 80)).toBe(true);
  });

  test("an address that is not the guest's goes nowhere", async () => {
    const guest = lab.guest();
    const source = { ...policyOf(guest).source, antiSpoof: true };
    await dataplane.setPolicy(guest, policyOf(guest, { source }));
    const packet = { destination: ipv4, protocol: PROTOCOL.udp };
    expect(await guest.reaches({ ...packet, source: "169.254.1.4" }, udp(1, 2))).toBe(false);
    expect(await guest.reaches(packet, udp(1, 2))).toBe(true);
  });

  test("an answer to a connection from outside passes, and another packet to the same port does not", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { defaultAllow: false }));
    const answer = guest.frame(
      { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.tcp },
      tcp(22, 50_001, TCP.syn | TCP.ack),
    );
    expect(await guest.exchange(answer, lab.world)).toEqual([]);
    const asked = lab.world.frame(
      { source: ipv4, destination: guest.ipv4, protocol: PROTOCOL.tcp },
      tcp(50_001, 22, TCP.syn),
    );
    expect(await lab.world.exchange(asked, guest)).toHaveLength(1);
    expect(await guest.exchange(answer, lab.world)).toHaveLength(1);
    expect(await syn(guest, ipv4, 50_001)).toBe(false);
  });

  test("a connection of the guest's own ends when the policy no longer allows it", async () => {
    const guest = lab.guest();
    const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.tcp };
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["198.51.100.0/24"] }));
    expect(await guest.exchange(guest.frame(head, tcp(40_100, 443, TCP.syn)), lab.world)).toHaveLength(1);
    const answer = { source: ipv4, destination: guest.ipv4, protocol: PROTOCOL.tcp };
    await lab.world.exchange(lab.world.frame(answer, tcp(443, 40_100, TCP.syn | TCP.ack)), guest);
    expect(await guest.exchange(guest.frame(head, tcp(40_100, 443, TCP.ack)), lab.world)).toHaveLength(1);
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["203.0.113.0/24"] }));
    expect(await guest.exchange(guest.frame(head, tcp(40_100, 443, TCP.ack)), lab.world)).toEqual([]);
  });

  test("what no table can enforce is refused, and the old policy stays", async () => {
    const guest = lab.guest();
    await dataplane.setPolicy(guest, policyOf(guest, { defaultAllow: false }));
    const limited = policyOf(guest, { packetsPerSecond: 10, nativeOnly: ["max_egress_pps"] });
    await expect(dataplane.setPolicy(guest, limited)).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
    expect(await syn(guest, ipv4, 443)).toBe(false);
  });
});

test("two restricted guests and an unrestricted neighbour leave each other alone", async () => {
  const [one, two, other] = [lab.guest(0), lab.guest(1), lab.guest(2)];
  await dataplane.setPolicy(one, policyOf(one, { allowPorts: [{ protocol: "tcp", port: 1001 }] }));
  await dataplane.attach(two, policyOf(two, { allowPorts: [{ protocol: "tcp", port: 1002 }] }));
  expect([await syn(one, ipv4, 1001), await syn(one, ipv4, 1002)]).toEqual([true, false]);
  expect([await syn(two, ipv4, 1001), await syn(two, ipv4, 1002)]).toEqual([false, true]);
  expect([await syn(other, ipv4, 1001), await syn(other, ipv4, 1003)]).toEqual([true, true]);
  const unrelated = lab.world.frame({ source: ipv4, destination: other.ipv4, protocol: PROTOCOL.udp }, udp(1, 2));
  expect(await lab.world.exchange(unrelated, other)).toHaveLength(1);
});

test("a flood while the policy is replaced loses nothing that both allow and lets nothing pass that both deny", async () => {
  const guest = lab.guest();
  const ports = (...allowed: number[]) =>
    policyOf(guest, { allowPorts: allowed.map((port) => ({ protocol: "udp", port })) });
  await dataplane.setPolicy(guest, ports(2000, 2001));
  const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.udp };
  const frames = [2000, 2001, 2002, 2003].map((port) => guest.frame(head, udp(9_000, port)));
  await lab.world.wire.count();
  const flood = guest.wire.flood({ frames, perSecond: 8_000, count: 16_000, freshFlows: true });
  await dataplane.toggle(guest, [ports(2000, 2002), ports(2000, 2001)], 50);
  expect(await flood).toEqual({ sent: 16_000, failed: 0 });
  await lab.pause();
  const counted = await lab.world.wire.counted();
  expect([counted.get("4/17/2000"), counted.get("4/17/2003")]).toEqual([4_000, undefined]);
  expect(counted.get("4/17/2002")).toBeGreaterThan(0);
});

test("the next process finds what is attached, makes again what is not, and removes what is nobody's", async () => {
  const [one, two] = [lab.guest(0), lab.guest(1)];
  const policies = [policyOf(one, { defaultAllow: false }), policyOf(two, { defaultAllow: false })] as const;
  await dataplane.setPolicy(one, policies[0]);
  await dataplane.setPolicy(two, policies[1]);
  await dataplane.kill();
  expect(await syn(one, ipv4, 443)).toBe(false);
  await outputOf(lab.inRouter(["nft", "delete", "table", "inet", `fluxvm_${one.sandboxId.replaceAll("-", "")}`]));
  const foreign = "fluxvm_00000000000000000000000000000000";
  await outputOf(lab.inRouter(["nft", "add", "table", "inet", foreign]));
  await dataplane.start();
  const report = await dataplane.repair([dataplane.requestOf(one, policies[0])]);
  expect(report).toEqual({ intact: [], repaired: [one.sandboxId], failed: [], orphans: 1 });
  expect(await syn(one, ipv4, 443)).toBe(false);
  expect(await dataplane.attachment(one)).toMatchObject({
    attached: true,
    interface: one.network.hostInterface,
    policyFingerprint: policies[0].fingerprint,
    method: "nft",
  });
  expect(await dataplane.attachment(two)).toMatchObject({ attached: false });
  expect(await rules()).toContain(foreign);
  await outputOf(lab.inRouter(["nft", "delete", "table", "inet", foreign]));
});

test("a process that runs makes a table again that somebody removed, and looks no more than it needs to", async () => {
  const guest = lab.guest();
  const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
  await dataplane.setPolicy(guest, policy);
  expect(await dataplane.mend(guest, policy)).toBe(false);
  await outputOf(lab.inRouter(["nft", "flush", "ruleset"]));
  expect((await dataplane.attachment(guest)).attached).toBe(false);
  const deadline = performance.now() + 10_000;
  while (!(await dataplane.mend(guest, policy)) && performance.now() < deadline) await Bun.sleep(100);
  expect((await dataplane.attachment(guest)).policyFingerprint).toBe(policy.fingerprint);
  expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
  expect(await dataplane.mend(guest, policy)).toBe(false);
});

test("what is detached leaves no rule", async () => {
  await dataplane.detach(lab.guest(0));
  expect(await rules()).toBe("");
});

test("a guest on a bridge is decided about as frames, or it is refused", async () => {
  await using bridged = await Lab.make({ hook: "bridged" });
  await using decider = await DataplaneUnderTest.start(bridged, { plugin: "legacy" });
  const guest = bridged.guest();
  await decider.attach(guest, policyOf(guest));
  expect(await syn(guest, ipv4, 443)).toBe(true);
  const refused = await decider.setPolicy(guest, policyOf(guest, { defaultAllow: false })).catch((error) => error);
  if (refused !== null) expect(refused).toMatchObject({ code: "CAPABILITY_MISSING" });
  expect(await syn(guest, ipv4, 443)).toBe(refused !== null);
  await decider.detach(guest);
});

test("frames are decided about as packets are", async () => {
  await using bridged = await Lab.make({ hook: "bridged", guests: 2 });
  const [guest, neighbour] = [bridged.guest(0), bridged.guest(1)];
  // Without the rule for answers, for which not every kernel follows connections on a bridge.
  const enforce = async (parts: Partial<EffectivePolicy>) => {
    const script = tableScript(guest.sandboxId, guest.network, policyOf(guest, parts), "test").split("\n");
    await applyNft(script.filter((line) => !line.includes("ct direction")).join("\n"), { namespace: bridged.router });
  };
  const passes = async () => [await syn(guest, ipv4, 443), await syn(guest, ipv6, 443), await syn(guest, ipv4, 80)];
  const odd = ethernet(neighbour.mac, guest.mac, 0x9999, new Uint8Array(50));
  await enforce({});
  expect(await passes()).toEqual([true, true, true]);
  expect(await guest.exchange(odd, neighbour)).toHaveLength(1);
  await enforce({ allowCidrs: ["198.51.100.0/24"] });
  expect(await passes()).toEqual([true, false, true]);
  await enforce({ allowCidrs: ["2001:db8::/64"] });
  expect(await passes()).toEqual([false, true, false]);
  await enforce({ allowPorts: [{ protocol: "tcp", port: 443 }] });
  expect(await passes()).toEqual([true, true, false]);
  expect(await guest.exchange(odd, neighbour)).toEqual([]);
  await enforce({ source: { ...policyOf(guest).source, antiSpoof: true } });
  expect(await passes()).toEqual([true, true, true]);
  const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.udp };
  const foreign = ethernet(guest.routerMac, "02:66:66:66:66:66", ETHERTYPE.ipv4, internet(head, udp(1, 2)));
  expect(await guest.exchange(foreign, bridged.world)).toEqual([]);
  const spoofed = guest.frame({ ...head, source: "10.77.0.99" }, udp(1, 2));
  expect(await guest.exchange(spoofed, bridged.world)).toEqual([]);
});
