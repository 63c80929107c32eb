// What the program in the kernel decides, with real packets of both families: each packet's fate, and what totals, flows and
// denials say of it. The order of decisions is in `native/bpf/README.md`.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { policyOf } from "../harness/dataplane.ts";
import { ALLOWED, audited, denied, UNCOUNTED } from "../harness/decisions.ts";
import { EbpfLab } from "../harness/ebpf-lab.ts";
import { ETHERTYPE, ethernet, icmp, type Internet, joined, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

const REASON = {
  malformed: 1,
  fragmented: 2,
  denied: 3,
  range: 4,
  port: 5,
  default: 8,
  rate: 7,
  ethertype: 11,
  udp: 12,
};

const place = EbpfLab.ofSuite();
const { enforce, decide } = place;
/** Each packet begins a flow of its own. */
let nextPort = 20_000;

interface Family {
  readonly source: () => string;
  readonly inside: string;
  readonly outside: string;
  readonly range: string;
  readonly host: string;
}

const FAMILIES: readonly (readonly [name: string, family: Family])[] = [
  [
    "IPv4",
    {
      source: () => place.guest().ipv4,
      inside: WORLD.ipv4,
      outside: "203.0.113.9",
      range: "198.51.100.0/24",
      host: `${WORLD.ipv4}/32`,
    },
  ],
  [
    "IPv6",
    {
      source: () => place.guest().ipv6,
      inside: WORLD.ipv6,
      outside: "2001:db8:9:0:0:0:0:9",
      range: "2001:db8::/64",
      host: "2001:db8::7/128",
    },
  ],
];

const to = (source: string, destination: string, payload: Uint8Array, parts: Partial<Internet> = {}) =>
  place.guest().frame({ source, destination, protocol: PROTOCOL.udp, ...parts }, payload);
const udpTo = (source: string, destination: string, port: number, parts: Partial<Internet> = {}) =>
  to(source, destination, udp(nextPort++, port), parts);
const synTo = (source: string, destination: string, port: number) =>
  to(source, destination, tcp(nextPort++, port, TCP.syn), { protocol: PROTOCOL.tcp });

describe.each(FAMILIES)("%s", (name, family) => {
  const { inside, outside, range, host } = family;
  const source = () => family.source();
  const ping = (destination: string) =>
    name === "IPv4"
      ? to(source(), destination, icmp(8), { protocol: PROTOCOL.icmp })
      : to(source(), destination, icmp(128), { protocol: PROTOCOL.icmp6 });

  test("what is allowed by default passes", async () => {
    await enforce({});
    expect(await decide(udpTo(source(), inside, 7))).toEqual(ALLOWED);
    expect(await decide(synTo(source(), outside, 443))).toEqual(ALLOWED);
    expect(await decide(ping(inside))).toEqual(ALLOWED);
  });

  test("what is denied by default does not", async () => {
    await enforce({ defaultAllow: false });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.default));
    expect(await decide(synTo(source(), inside, 443))).toEqual(denied(REASON.default));
    expect(await decide(ping(inside))).toEqual(denied(REASON.default));
  });

  test("destinations: those in a range pass, and no others, whatever the default", async () => {
    for (const defaultAllow of [true, false]) {
      await enforce({ defaultAllow, allowCidrs: [range] });
      expect(await decide(udpTo(source(), inside, 7))).toEqual(ALLOWED);
      expect(await decide(udpTo(source(), outside, 7))).toEqual(denied(REASON.range));
    }
  });

  test("ranges of the other family allow nothing of this one", async () => {
    await enforce({ allowCidrs: [name === "IPv4" ? "::/0" : "0.0.0.0/0"] });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.range));
  });

  // Defect b: names of which none is resolved.
  test("destinations that turned out to be none allow none, also where everything is allowed by default", async () => {
    await enforce({ defaultAllow: true, allowCidrs: [] });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.range));
    expect(await decide(synTo(source(), inside, 443))).toEqual(denied(REASON.range));
  });

  test("ports: protocol and port pass, and no others", async () => {
    await enforce({ allowPorts: [{ protocol: "tcp", port: 443 }] });
    expect(await decide(synTo(source(), outside, 443))).toEqual(ALLOWED);
    expect(await decide(synTo(source(), outside, 444))).toEqual(denied(REASON.port));
    expect(await decide(udpTo(source(), outside, 443))).toEqual(denied(REASON.port));
    expect(await decide(ping(outside))).toEqual(denied(REASON.port));
  });

  test("destinations and ports are both asked for", async () => {
    await enforce({ allowCidrs: [range], allowPorts: [{ protocol: "udp", port: 7 }] });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(ALLOWED);
    expect(await decide(udpTo(source(), inside, 8))).toEqual(denied(REASON.port));
    expect(await decide(udpTo(source(), outside, 7))).toEqual(denied(REASON.range));
  });

  test("a denied range beats an allowed one, the default and ICMP", async () => {
    for (const allowed of [{}, { allowCidrs: [range], allowIcmp: true }]) {
      await enforce({ ...allowed, denyCidrs: [host] });
      expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.denied));
      expect(await decide(ping(inside))).toEqual(denied(REASON.denied));
    }
  });

  // Defect d: on IPv4, too.
  test("a port of ICMP allows ICMP and nothing else", async () => {
    await enforce({ allowPorts: [{ protocol: name === "IPv4" ? "icmp" : "icmp6", port: 0 }] });
    expect(await decide(ping(inside))).toEqual(ALLOWED);
    expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.port));
  });

  test("ICMP that is allowed asks neither for destinations nor for ports", async () => {
    await enforce({ defaultAllow: false, allowIcmp: true });
    expect(await decide(ping(outside))).toEqual(ALLOWED);
    expect(await decide(udpTo(source(), outside, 7))).toEqual(denied(REASON.default));
  });

  test("UDP that is denied is denied with SCTP, and TCP is not", async () => {
    await enforce({ denyUdp: true });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(denied(REASON.udp));
    const sctp = joined([0x30, 0x39, 0, 7], new Uint8Array(8), new Uint8Array(16));
    expect(await decide(to(source(), inside, sctp, { protocol: PROTOCOL.sctp }))).toEqual(denied(REASON.udp));
    expect(await decide(synTo(source(), inside, 7))).toEqual(ALLOWED);
  });

  test("a header that ends too early is malformed, also where nothing is enforced or only watched", async () => {
    for (const parts of [{}, { defaultAllow: false, audit: true }]) {
      await enforce(parts);
      const short = to(source(), inside, Uint8Array.of(1, 2, 3), { protocol: PROTOCOL.tcp });
      expect(await decide(short)).toEqual(denied(REASON.malformed));
    }
  });

  test("an audit writes down what would be denied, and lets it pass", async () => {
    await enforce({ audit: true, allowCidrs: [range], allowPorts: [{ protocol: "udp", port: 7 }] });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(ALLOWED);
    expect(await decide(udpTo(source(), inside, 8))).toEqual(audited(REASON.port));
    expect(await decide(udpTo(source(), outside, 7))).toEqual(audited(REASON.range));
    await enforce({ audit: true, denyCidrs: [host] });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(audited(REASON.denied));
    await enforce({ audit: true, defaultAllow: false });
    expect(await decide(udpTo(source(), inside, 7))).toEqual(audited(REASON.default));
  });

  // Defect e: what audit let through is judged again, and says so again.
  test("an audited flow is not taken for an allowed one by its next packet", async () => {
    await enforce({ audit: true, defaultAllow: false });
    const packet = udpTo(source(), inside, 7);
    expect([await decide(packet), await decide(packet)]).toEqual([audited(REASON.default), audited(REASON.default)]);
    await enforce({ defaultAllow: false });
    expect(await decide(packet)).toEqual(denied(REASON.default));
  });
});

describe("IPv4", () => {
  const source = () => place.guest().ipv4;

  test("fragments cannot be judged by ports, and are denied where ports decide", async () => {
    const parts = [
      { offset: 0, more: true },
      { offset: 1480, more: false },
    ];
    for (const fragment of parts) {
      const packet = () => to(source(), WORLD.ipv4, udp(nextPort++, 7, "x".repeat(64)), { fragment });
      await enforce({ allowPorts: [{ protocol: "udp", port: 7 }] });
      expect(await decide(packet())).toEqual(denied(REASON.fragmented));
      await enforce({ allowPorts: [{ protocol: "udp", port: 7 }], audit: true });
      expect(await decide(packet())).toEqual(audited(REASON.fragmented));
      await enforce({ allowCidrs: ["198.51.100.0/24"] });
      expect((await decide(packet())).counted).toBe("allowed");
    }
  });

  test("a frame that ends within its IP header is dropped, and no flow tells of it", async () => {
    await enforce({});
    const guest = place.guest();
    const cut = ethernet(guest.routerMac, guest.mac, ETHERTYPE.ipv4, new Uint8Array(8).fill(0x45));
    expect(await decide(cut)).toEqual(UNCOUNTED);
  });

  test("the address of a cloud's metadata passes only when it is allowed by itself", async () => {
    await enforce({});
    expect(await decide(synTo(source(), "169.254.169.254", 80))).toEqual(denied(REASON.denied));
    await enforce({ allowCidrs: ["169.254.0.0/16"] });
    expect(await decide(synTo(source(), "169.254.169.254", 80))).toEqual(denied(REASON.denied));
    await enforce({ allowCidrs: ["169.254.169.254/32"] });
    expect(await decide(synTo(source(), "169.254.169.254", 80))).toEqual(ALLOWED);
  });

  // Defect o: the resolver is the gateway's, and no list of destinations is in its way.
  test("names can be asked for at the gateway whatever is allowed, and nowhere else", async () => {
    const { gateway4 } = place.guest().addresses;
    await enforce({ defaultAllow: false, allowCidrs: ["10.0.0.0/8"], allowPorts: [{ protocol: "tcp", port: 443 }] });
    expect(await decide(udpTo(source(), gateway4, 53))).toMatchObject({ counted: "allowed", reason: null });
    expect(await decide(synTo(source(), gateway4, 53))).toMatchObject({ counted: "allowed", reason: null });
    expect(await decide(udpTo(source(), gateway4, 54))).toMatchObject({ counted: "dropped", reason: REASON.range });
    expect(await decide(udpTo(source(), WORLD.ipv4, 53))).toEqual(denied(REASON.range));
  });

  test("ARP passes where everything is denied", async () => {
    await enforce({ defaultAllow: false });
    const guest = place.guest();
    const [mac, own, wanted] = [guest.mac, guest.ipv4, guest.addresses.gateway4];
    const bytes = (text: string, base: number, mark: string) =>
      text.split(mark).map((part) => Number.parseInt(part, base));
    const question = joined([0, 1, 8, 0, 6, 4, 0, 1], bytes(mac, 16, ":"), bytes(own, 10, "."), new Uint8Array(6));
    const asked = ethernet("ff:ff:ff:ff:ff:ff", mac, ETHERTYPE.arp, joined(question, bytes(wanted, 10, ".")));
    const answers = await guest.exchange(asked, guest);
    expect(answers).toMatchObject([{ ethertype: ETHERTYPE.arp }]);
  });

  // Defect f: a way out for whoever speaks like a DHCP client.
  test("DHCP passes to everybody and to the gateway, and to nobody else, and not without end", async () => {
    await enforce({ defaultAllow: false });
    const dhcp = (destination: string, from = "0.0.0.0") => to(from, destination, udp(68, 67));
    const control = { counted: "allowed", reason: null } as const;
    expect(await decide(dhcp("255.255.255.255"))).toMatchObject(control);
    expect(await decide(dhcp(place.guest().addresses.gateway4, source()))).toMatchObject(control);
    expect(await decide(dhcp(WORLD.ipv4, source()))).toEqual(denied(REASON.default));
    const before = await place.dataplane.stats(place.guest());
    const began = performance.now();
    await place.guest().wire.flood({ frames: [dhcp("255.255.255.255")], perSecond: 5_000, count: 1_000 });
    await place.lab.settle();
    const seconds = (performance.now() - began) / 1_000;
    const after = await place.dataplane.stats(place.guest());
    const allowed = Number(after.allowedPackets - before.allowedPackets);
    expect(allowed).toBeLessThanOrEqual(64 * (seconds + 1) + 1);
    expect(Number(after.droppedPackets - before.droppedPackets)).toBe(1_000 - allowed);
  });
});

describe("IPv6", () => {
  const source = () => place.guest().ipv6;
  const header = (next: number, bytes = 7) => [next, joined([0], new Uint8Array(bytes - 1).fill(0))] as const;

  test("headers between are read through, and the ports behind them are judged", async () => {
    await enforce({ allowPorts: [{ protocol: "udp", port: 7 }] });
    for (const extensions of [
      [header(60)],
      [header(0), header(60), header(43)],
      [[51, joined([4], new Uint8Array(22))]],
    ] as const) {
      expect(await decide(udpTo(source(), WORLD.ipv6, 7, { extensions: [...extensions] }))).toEqual(ALLOWED);
      expect(await decide(udpTo(source(), WORLD.ipv6, 8, { extensions: [...extensions] }))).toEqual(
        denied(REASON.port),
      );
    }
  });

  test("more headers than are read is malformed", async () => {
    await enforce({});
    const extensions = Array.from({ length: 7 }, () => header(60));
    expect(await decide(udpTo(source(), WORLD.ipv6, 7, { extensions }))).toMatchObject({
      counted: "dropped",
      reason: 1,
    });
  });

  test("fragments cannot be judged by ports", async () => {
    const fragment = [44, Uint8Array.of(0, 0, 1, 0, 0, 0, 9)] as const;
    await enforce({ allowPorts: [{ protocol: "udp", port: 7 }] });
    const packet = () => udpTo(source(), WORLD.ipv6, 7, { extensions: [fragment] });
    expect(await decide(packet())).toMatchObject({ arrived: false, reason: REASON.fragmented });
    await enforce({ allowCidrs: ["2001:db8::/64"] });
    expect((await decide(packet())).counted).toBe("allowed");
  });

  // Defect f, of the other family.
  test("neighbours are found where everything is denied, on the link and nowhere else", async () => {
    await enforce({ defaultAllow: false });
    const guest = place.guest();
    const target = joined([0, 0, 0, 0], new Uint8Array(16).fill(0xfd));
    const solicit = (destination: string, hops: number) =>
      to(guest.ipv6, destination, icmp(135, target), { protocol: PROTOCOL.icmp6, hops });
    expect(await decide(solicit("ff02::1:ff00:1", 255))).toMatchObject({ counted: "allowed", reason: null });
    expect(await decide(solicit("ff02::1:ff00:1", 64))).toMatchObject({ counted: "dropped", reason: REASON.default });
    expect(await decide(solicit(WORLD.ipv6, 255))).toEqual(denied(REASON.default));
  });
});

test("an interface that the program knows nothing of is closed, and nothing is counted", async () => {
  const guest = place.guest();
  await enforce({});
  await place.dataplane.forget(guest);
  expect(await guest.reaches({ destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(false);
  expect(await guest.reaches({ destination: WORLD.ipv6, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(false);
  const wanted = policyOf(guest);
  const report = await place.dataplane.repair([place.dataplane.requestOf(guest, wanted)]);
  expect(report).toMatchObject({ repaired: [guest.sandboxId], failed: [] });
  expect(await guest.reaches({ destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(true);
});

// Defect g: what no list can name is let through where there is a list.
test("a frame that is not IP passes only where nothing is enforced", async () => {
  const guest = place.guest();
  const frame = ethernet(guest.routerMac, guest.mac, 0x9999, new Uint8Array(50));
  const tagged = ethernet(guest.routerMac, guest.mac, ETHERTYPE.vlan, joined([0, 5, 8, 0], new Uint8Array(50)));
  for (const each of [frame, tagged]) {
    await enforce({});
    expect(await decide(each)).toMatchObject({ counted: "allowed", reason: null });
    for (const parts of [{ allowCidrs: ["0.0.0.0/0"] }, { allowPorts: [] }, { defaultAllow: false }]) {
      await enforce(parts);
      expect(await decide(each)).toMatchObject({ counted: "dropped", reason: REASON.ethertype });
    }
    await enforce({ audit: true, defaultAllow: false });
    expect(await decide(each)).toMatchObject({ counted: "allowed", reason: REASON.ethertype, action: "audit" });
  }
});
