// The host's own table and the table of a machine's namespace, with real packets: an interface that nobody decides about is
// closed, a sandbox reaches neither its neighbours nor the host, whatever its policy, and a guest has its leased address
// outside and the address that all guests have inside.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { HostTable, hostTableState, removeHostTable } from "../../plugins/host/host-table.ts";
import { translateNamespace } from "../../plugins/host/namespace-table.ts";
import { foundMark, GENERATION } from "../../plugins/host/host-table-rules.ts";
import { nftSet, nftTable, nftTables } from "../../plugins/host/nft.ts";
import { DataplaneUnderTest, policyOf } from "../harness/dataplane.ts";
import {
  checksumOf,
  ETHERTYPE,
  ethernet,
  icmp,
  internet,
  joined,
  PROTOCOL,
  TCP,
  tcp,
  udp,
  uint16,
} from "../harness/frames.ts";
import { type Guest, Lab, WORLD } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const AGENT_PORT = 7788;
/** Answers whatever it is asked, and takes whatever connects. */
const NAME_SERVER = `
const socket = require("node:dgram").createSocket("udp4");
socket.on("message", (question, from) => socket.send(question, from.port, from.address));
require("node:net").createServer(() => {}).listen(53, "0.0.0.0", () => socket.bind(53, "0.0.0.0", () => console.log("open")));`;
const { ipv4, ipv6 } = WORLD;
const warnings: string[] = [];
const log = { warn: (_: unknown, message: string) => void warnings.push(message) };

describe("the host's table", () => {
  let lab: Lab;
  let dataplane: DataplaneUnderTest;
  let table: HostTable;

  beforeAll(async () => {
    lab = await Lab.make({ guests: 3 });
    table = new HostTable({ agentPorts: [AGENT_PORT], namespace: lab.router, log });
    await table.ensure();
    dataplane = await DataplaneUnderTest.start(lab, { plugin: "legacy" });
    for (const guest of [lab.guest(0), lab.guest(1)]) await dataplane.attach(guest, policyOf(guest));
  });

  afterAll(async () => {
    table.close();
    await dataplane[Symbol.asyncDispose]();
    await lab[Symbol.asyncDispose]();
  });

  test("closes an interface of a sandbox that no dataplane decides about, in both families", async () => {
    const [attached, bare] = [lab.guest(0), lab.guest(2)];
    for (const destination of [ipv4, ipv6, bare.addresses.gateway4, bare.addresses.gateway6]) {
      const packet = { destination, protocol: PROTOCOL.udp };
      expect(await bare.reaches(packet, udp(1, 53))).toBe(false);
    }
    expect(await attached.reaches({ destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 53))).toBe(true);
    expect(await attached.reaches({ destination: ipv6, protocol: PROTOCOL.udp }, udp(1, 53))).toBe(true);
  });

  test("gives what leaves the host the host's address, and takes the answer back", async () => {
    const guest = lab.guest();
    const asked = guest.frame({ source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.udp }, udp(4_000, 53));
    const [seen] = await guest.exchange(asked, lab.world);
    expect(seen).toMatchObject({ source: "192.0.2.1", destination: ipv4 });
    const answer = { source: ipv4, destination: "192.0.2.1", protocol: PROTOCOL.udp };
    const back = await lab.world.exchange(lab.world.frame(answer, udp(53, seen?.sourcePort ?? 0)), guest);
    expect(back).toMatchObject([{ source: ipv4, destination: guest.ipv4, destinationPort: 4_000 }]);
  });

  test("lets nothing out that belongs to no connection, since it would have the leased address", async () => {
    const guest = lab.guest();
    const quoted = internet({ source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 2));
    const error = icmp(3, joined([0, 0, 0, 0], quoted.subarray(0, 28)));
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.icmp }, error)).toBe(false);
    for (const flags of [0, TCP.rst, TCP.syn | TCP.ack, TCP.fin | TCP.push]) {
      expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.tcp }, tcp(7_000, 443, flags))).toBe(false);
    }
    expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.tcp }, tcp(7_000, 443, TCP.syn))).toBe(true);
  });

  test("remembers so many connections of one sandbox, and others open theirs meanwhile", async () => {
    const [greedy, modest] = [lab.guest(0), lab.guest(1)];
    const head = { source: greedy.ipv4, destination: ipv4, protocol: PROTOCOL.udp };
    // One that was answered goes on, whatever follows; the kernel may take others anew for as long as they are not.
    const known = greedy.frame(head, udp(5_000, 19_999));
    const [seen] = await greedy.exchange(known, lab.world);
    const answer = { source: ipv4, destination: "192.0.2.1", protocol: PROTOCOL.udp };
    await lab.world.exchange(lab.world.frame(answer, udp(19_999, seen?.sourcePort ?? 0)), greedy);
    lab.world.wire.arrivals.length = 0;
    for (let port = 20_000; port < 20_200; port++) await greedy.wire.send(greedy.frame(head, udp(5_000, port)));
    await lab.settle();
    const arrived = lab.world.seen().length;
    expect(arrived).toBeLessThanOrEqual(128);
    expect(arrived).toBeGreaterThan(100);
    const asks = { destination: ipv4, protocol: PROTOCOL.udp };
    // What is remembered goes on, and there is room beside it.
    expect(await greedy.reaches(asks, udp(5_000, 19_999))).toBe(true);
    expect(await greedy.reaches(asks, udp(5_000, 21_000))).toBe(false);
    expect(await greedy.reaches(asks, udp(5_001, 21_000))).toBe(true);
    expect(await modest.reaches(asks, udp(5_000, 21_000))).toBe(true);
  });

  test("keeps sandboxes from each other, and from those who would come in", async () => {
    const [one, two] = [lab.guest(0), lab.guest(1)];
    for (const [source, destination] of [
      [one.ipv4, two.ipv4],
      [one.ipv6, two.ipv6],
    ] as const) {
      const frame = one.frame({ source, destination, protocol: PROTOCOL.tcp }, tcp(1, 22, TCP.syn));
      expect(await one.exchange(frame, two)).toEqual([]);
    }
    for (const [source, destination] of [
      [ipv4, one.ipv4],
      [ipv6, one.ipv6],
    ] as const) {
      const frame = lab.world.frame({ source, destination, protocol: PROTOCOL.tcp }, tcp(1, 22, TCP.syn));
      expect(await lab.world.exchange(frame, one)).toEqual([]);
    }
  });

  test("lets no sandbox say something about a connection of another", async () => {
    const [one, two] = [lab.guest(0), lab.guest(1)];
    const head = { source: two.ipv6, destination: ipv6, protocol: PROTOCOL.udp };
    const asked = udp(6_000, 53);
    expect(await two.reaches(head, asked)).toBe(true);
    const unreachable = icmp(1, joined([0, 0, 0, 0], internet(head, asked)));
    const says = (source: string) => ({ source, destination: two.ipv6, protocol: PROTOCOL.icmp6 });
    // What somebody on its way says of it gets there.
    expect(await lab.world.exchange(lab.world.frame(says(ipv6), unreachable), two)).toMatchObject([{ icmpType: 1 }]);
    expect(await one.exchange(one.frame(says(one.ipv6), unreachable), two)).toEqual([]);
  });

  test("tells both ends of a connection how long a segment may be on its way", async () => {
    const guest = lab.guest();
    const asking = (ports: readonly [number, number], flags: number) => {
      const segment = tcp(...ports, flags, joined([2, 4], uint16(9_000)));
      // With one option behind the header, and the number that answers the first segment.
      segment.set([0x60], 12);
      if (flags & TCP.ack) segment.set([2], 11);
      return segment;
    };
    const longest = ({ frame }: { readonly frame: Uint8Array }) => new DataView(frame.buffer).getUint16(56);
    const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.tcp };
    const [seen] = await guest.exchange(guest.frame(head, asking([7_100, 443], TCP.syn)), lab.world);
    expect(longest(seen!)).toBe(1_460);
    const answer = { source: ipv4, destination: "192.0.2.1", protocol: PROTOCOL.tcp };
    const answered = asking([443, seen?.sourcePort ?? 0], TCP.syn | TCP.ack);
    const [back] = await lab.world.exchange(lab.world.frame(answer, answered), guest);
    expect(longest(back!)).toBe(1_460);
  });

  test("keeps the host's ports from sandboxes, at every address of the host, but for names at the gateway", async () => {
    const guest = lab.guest();
    const { gateway4, gateway6 } = guest.addresses;
    const answers = async (destination: string, port: number, protocol: "tcp" | "udp" = "tcp") => {
      const source = destination.includes(":") ? guest.ipv6 : guest.ipv4;
      const payload = protocol === "tcp" ? tcp(30_000 + port, port, TCP.syn) : udp(30_000, port);
      return await guest.exchange(guest.frame({ source, destination, protocol: PROTOCOL[protocol] }, payload), guest);
    };
    // Whatever answers would be the kernel: a reset, or that nobody listens there.
    for (const address of [gateway4, "192.0.2.1", gateway6, "2001:db8:ffff::1", lab.guest(1).addresses.gateway4]) {
      expect(await answers(address, AGENT_PORT)).toEqual([]);
      expect(await answers(address, 22)).toEqual([]);
      expect(await answers(address, 5353, "udp")).toEqual([]);
    }
    expect(await answers("192.0.2.1", 53)).toEqual([]);
    expect(await answers(gateway4, 53)).toMatchObject([{ source: gateway4, tcpFlags: TCP.rst | TCP.ack }]);
    expect(await answers(gateway4, 53, "udp")).toMatchObject([{ source: gateway4, icmpType: 3 }]);
    const ping = guest.frame({ source: guest.ipv4, destination: gateway4, protocol: PROTOCOL.icmp }, icmp(8));
    expect(await guest.exchange(ping, guest)).toMatchObject([{ icmpType: 0 }]);
  });

  test("keeps one sandbox from asking for names so much that others are not answered", async () => {
    const [greedy, modest] = [lab.guest(0), lab.guest(1)];
    const server = Bun.spawn(lab.inRouter([process.execPath, "-e", NAME_SERVER]), {
      stdout: "pipe",
      stderr: "inherit",
    });
    await (server.stdout as ReadableStream<Uint8Array>).getReader().read();
    const asks = (guest: Guest, protocol: "tcp" | "udp", port: number) => {
      const payload = protocol === "tcp" ? tcp(port, 53, TCP.syn) : udp(port, 53, "who?");
      const head = { source: guest.ipv4, destination: guest.addresses.gateway4, protocol: PROTOCOL[protocol] };
      return guest.frame(head, payload);
    };
    const answered = (guest: Guest) => new Set(guest.seen().map(({ destinationPort }) => destinationPort)).size;
    greedy.wire.arrivals.length = 0;
    const startedMs = performance.now();
    for (let port = 10_000; port < 11_000; port++) await greedy.wire.send(asks(greedy, "udp", port));
    await lab.settle();
    const most = 300 + 50 * ((performance.now() - startedMs) / 1000) + 1;
    expect(answered(greedy)).toBeGreaterThan(250);
    expect(answered(greedy)).toBeLessThanOrEqual(most);
    expect(await modest.exchange(asks(modest, "udp", 10_000), modest)).toMatchObject([{ destinationPort: 10_000 }]);
    greedy.wire.arrivals.length = 0;
    for (let port = 12_000; port < 12_020; port++) await greedy.wire.send(asks(greedy, "tcp", port));
    await lab.settle();
    expect(answered(greedy)).toBe(4);
    expect(await modest.exchange(asks(modest, "tcp", 12_000), modest)).toMatchObject([{ tcpFlags: TCP.syn | TCP.ack }]);
    server.kill("SIGKILL");
    await server.exited;
  });

  test("forwards to no leased address", async () => {
    const packet = { destination: "169.254.77.7", protocol: PROTOCOL.udp };
    expect(await lab.guest().reaches(packet, udp(1, 2))).toBe(false);
  });

  test("is made again when somebody flushes the rules, and says so", async () => {
    expect(await hostTableState({ namespace: lab.router })).toBe("intact");
    await outputOf(lab.inRouter(["nft", "flush", "chain", "inet", "fluxvm", "forward"]));
    expect(await hostTableState({ namespace: lab.router })).toBe("damaged");
    const next = new HostTable({ agentPorts: [2222], namespace: lab.router, log });
    await next.ensure();
    next.close();
    expect(await hostTableState({ namespace: lab.router })).toBe("intact");
    expect(warnings).toContain("the host's table of networks was changed and is made again");
    const listed = await outputOf(lab.inRouter(["nft", "list", "set", "bridge", "fluxvm", "agent_ports"]));
    expect(listed).toContain("2222, 7788");
  });

  test("is made by whichever agents there are, at once, and keeps what each of them has closed", async () => {
    await removeHostTable({ namespace: lab.router });
    const ports = Array.from({ length: 6 }, (_, index) => 3000 + index);
    const tables = ports.map((port) => new HostTable({ agentPorts: [port], namespace: lab.router, log }));
    await Promise.all(tables.map((one) => one.ensure()));
    for (const one of tables) one.close();
    const listed = () => nftSet("bridge", "fluxvm", "agent_ports", { namespace: lab.router });
    expect((await listed()).toSorted()).toEqual(ports);
    await outputOf(lab.inRouter(["nft", "flush", "chain", "bridge", "fluxvm", "input"]));
    const next = new HostTable({ agentPorts: [], namespace: lab.router, log });
    await next.ensure();
    next.close();
    expect((await listed()).toSorted()).toEqual(ports);
  });

  test("is the newer one's of two agents of different versions, until it is damaged, and the older one says so once", async () => {
    const place = { namespace: lab.router };
    const found = async () => foundMark((await nftTable("inet", "fluxvm", place))!)?.generation;
    const agent = (port: number, generation: number) =>
      new HostTable({ agentPorts: [port], namespace: lab.router, log, generation });
    const ensured = async (table: HostTable) => {
      await table.ensure();
      table.close();
      return table;
    };
    await ensured(agent(3100, GENERATION + 1));
    warnings.length = 0;
    const older = await ensured(agent(3101, GENERATION));
    expect([await found(), await hostTableState(place)]).toEqual([GENERATION + 1, "newer"]);
    expect(older.note).toContain("a newer agent");
    expect(warnings).toEqual([older.note!]);
    const closed = await nftSet("bridge", "fluxvm", "agent_ports", place);
    expect(closed).toEqual(expect.arrayContaining([3100, 3101]));
    const newer = await ensured(agent(3100, GENERATION + 1));
    expect([newer.note, warnings]).toEqual([null, [older.note!]]);

    await outputOf(lab.inRouter(["nft", "flush", "chain", "inet", "fluxvm", "forward"]));
    await ensured(agent(3101, GENERATION));
    expect([await found(), await hostTableState(place)]).toEqual([GENERATION, "newer"]);
    await ensured(agent(3100, GENERATION + 1));
    expect(await found()).toBe(GENERATION + 1);
    expect(await nftSet("bridge", "fluxvm", "agent_ports", place)).toEqual(expect.arrayContaining(closed.slice()));
  });

  test("leaves nothing when it is removed", async () => {
    await dataplane.detach(lab.guest(0));
    await dataplane.detach(lab.guest(1));
    await removeHostTable({ namespace: lab.router });
    expect(await nftTables({ namespace: lab.router })).toEqual([]);
    expect(await hostTableState({ namespace: lab.router })).toBe("absent");
  });
});

test("all sandboxes together leave a part of what the kernel remembers to the host", async () => {
  await using lab = await Lab.make({ guests: 3 });
  const table = new HostTable({ agentPorts: [], namespace: lab.router, log, trackedMax: 512 });
  await table.ensure();
  table.close();
  await using dataplane = await DataplaneUnderTest.start(lab, { plugin: "legacy" });
  const guests = [lab.guest(0), lab.guest(1), lab.guest(2)];
  for (const guest of guests) await dataplane.attach(guest, policyOf(guest));
  lab.world.wire.arrivals.length = 0;
  // None of them comes near to what one may have.
  for (let port = 20_000; port < 20_120; port++) {
    for (const guest of guests) {
      const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.udp };
      await guest.wire.send(guest.frame(head, udp(port, 443)));
    }
  }
  await lab.settle();
  const arrived = lab.world.seen().length;
  expect(arrived).toBeLessThanOrEqual(256);
  expect(arrived).toBeGreaterThan(200);
  for (const guest of guests) await dataplane.detach(guest);
});

test("a guest on a bridge of the host reaches neither the agent nor what listens on the loopback", async () => {
  await using lab = await Lab.make({ hook: "bridged" });
  await using dataplane = await DataplaneUnderTest.start(lab, { plugin: "legacy" });
  const [guest, table] = [lab.guest(), new HostTable({ agentPorts: [AGENT_PORT], namespace: lab.router, log })];
  await table.ensure();
  table.close();
  // As some hosts have it: without the table the loopback would be reachable from the bridge.
  await outputOf(lab.inRouter(["sysctl", "-qw", "net.ipv4.conf.all.route_localnet=1"]));
  const answers = async (destination: string, port: number) => {
    const head = { source: guest.ipv4, destination, protocol: PROTOCOL.tcp };
    const arrived = await guest.exchange(guest.frame(head, tcp(1_000 + port, port, TCP.syn)), guest);
    // A bridge tells its ports about groups, too.
    return arrived.filter(({ tcpFlags }) => tcpFlags !== null).length;
  };
  expect(await answers(guest.addresses.gateway4, 22)).toBe(0);
  expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(false);
  await dataplane.attach(guest, policyOf(guest));
  expect(await answers(guest.addresses.gateway4, 22)).toBe(1);
  expect(await answers(guest.addresses.gateway4, AGENT_PORT)).toBe(0);
  expect(await answers("127.0.0.1", 22)).toBe(0);
  expect(await guest.reaches({ destination: ipv4, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(true);
  await dataplane.detach(guest);
});

describe("the table of a machine's namespace", () => {
  // The router stands for the namespace, the guest's link for the bridge, and the uplink for the way to the host.
  const [INSIDE, GATEWAY_INSIDE, LEASED, GATEWAY] = ["169.254.0.3", "169.254.0.1", "169.254.9.3", "169.254.9.1"];
  let lab: Lab;

  beforeAll(async () => {
    lab = await Lab.make();
    const guest = lab.guest();
    const commands = [
      `addr flush dev ${guest.network.hostInterface}`,
      `addr add ${GATEWAY_INSIDE}/28 dev ${guest.network.hostInterface}`,
      `neigh replace ${INSIDE} lladdr ${guest.mac} dev ${guest.network.hostInterface} nud permanent`,
      `route add ${LEASED}/32 dev ${guest.network.hostInterface}`,
    ];
    await outputOf(["ip", "-n", lab.router, "-batch", "-"], { input: new Blob([commands.join("\n")]) });
    const inside = guest.network.hostInterface;
    await translateNamespace({ namespace: lab.router, inside, outside: "uplink", guest: LEASED, gateway: GATEWAY });
  });

  afterAll(() => lab[Symbol.asyncDispose]());

  const fromGuest = (destination: string, protocol: number, payload: Uint8Array, source: string = INSIDE) =>
    lab.guest().frame({ source, destination, protocol }, payload);
  const fromHost = (source: string, protocol: number, payload: Uint8Array) =>
    lab.world.frame({ source, destination: LEASED, protocol }, payload);

  test("gives a guest its leased address on the way out, and its own on the way back, with right checksums", async () => {
    const guest = lab.guest();
    const [out] = await guest.exchange(fromGuest(ipv4, PROTOCOL.tcp, tcp(4_000, 443, TCP.syn)), lab.world);
    expect(out).toMatchObject({ source: LEASED, destination: ipv4 });
    const wanted = internet(
      { source: LEASED, destination: ipv4, protocol: PROTOCOL.tcp, hops: 63 },
      tcp(4_000, 443, 2),
    );
    expect(out?.frame.subarray(14).toHex()).toBe(wanted.toHex());
    const [back] = await lab.world.exchange(fromHost(ipv4, PROTOCOL.udp, udp(443, 4_000)), guest);
    const given = internet({ source: ipv4, destination: INSIDE, protocol: PROTOCOL.udp, hops: 63 }, udp(443, 4_000));
    expect(back?.frame.subarray(14).toHex()).toBe(given.toHex());
  });

  test("leads questions about names to the host, and its answers back", async () => {
    const guest = lab.guest();
    for (const [protocol, payload, answer] of [
      [PROTOCOL.udp, udp(4_001, 53), udp(53, 4_001)],
      [PROTOCOL.tcp, tcp(4_001, 53, TCP.syn), tcp(53, 4_001, TCP.syn | TCP.ack)],
    ] as const) {
      const asked = await guest.exchange(fromGuest(GATEWAY_INSIDE, protocol, payload), lab.world);
      expect(asked).toMatchObject([{ source: LEASED, destination: GATEWAY, destinationPort: 53 }]);
      const answered = await lab.world.exchange(fromHost(GATEWAY, protocol, answer), guest);
      expect(answered).toMatchObject([{ source: GATEWAY_INSIDE, destination: INSIDE, destinationPort: 4_001 }]);
    }
  });

  test("takes no address of the guest's own choice, and nothing but IPv4", async () => {
    const guest = lab.guest();
    for (const source of [LEASED, "169.254.0.4", "198.51.100.1", "0.0.0.0"]) {
      expect(await guest.exchange(fromGuest(ipv4, PROTOCOL.udp, udp(1, 2), source), lab.world)).toEqual([]);
    }
    expect(await guest.reaches({ destination: ipv6, protocol: PROTOCOL.udp }, udp(1, 2))).toBe(false);
  });

  test("lets fragments through as they are, translated", async () => {
    const guest = lab.guest();
    const parts = [
      { offset: 0, more: true },
      { offset: 16, more: false },
    ];
    for (const fragment of parts) {
      const head = { source: INSIDE, destination: ipv4, protocol: PROTOCOL.udp, fragment };
      const frame = ethernet(guest.routerMac, guest.mac, ETHERTYPE.ipv4, internet(head, udp(1, 2, "12345678")));
      expect(await guest.exchange(frame, lab.world)).toMatchObject([{ source: LEASED }]);
    }
  });

  test("answers a ping to the gateway itself, and offers nothing else of the namespace", async () => {
    const guest = lab.guest();
    const ping = fromGuest(GATEWAY_INSIDE, PROTOCOL.icmp, icmp(8));
    expect(await guest.exchange(ping, guest)).toMatchObject([{ source: GATEWAY_INSIDE, icmpType: 0 }]);
    expect(await guest.exchange(fromGuest(GATEWAY_INSIDE, PROTOCOL.tcp, tcp(1, 22, TCP.syn)), guest)).toEqual([]);
    // Nobody serves addresses here, so the kernel says so: the question was let in, renewed or new.
    for (const source of [INSIDE]) {
      const renewal = fromGuest(GATEWAY_INSIDE, PROTOCOL.udp, udp(68, 67), source);
      expect(await guest.exchange(renewal, guest)).toMatchObject([{ icmpType: 3 }]);
    }
  });

  // What `icmp` sets is right, and stays right: the receiver's kernel drops an error whose checksum is wrong.
  const isWhole = (frame: Uint8Array) => checksumOf(frame.subarray(14 + 20)) === 0;
  const about = (source: string, destination: string) =>
    internet({ source, destination, protocol: PROTOCOL.udp }, udp(4_000, 4_001)).subarray(0, 28);
  const TOO_LARGE = 3;

  test("translates what an error is about, both ways, so that it is known for whose it is", async () => {
    const guest = lab.guest();
    const mtu = Uint8Array.of(0, 0, 0x05, 0x78);
    const inbound = fromHost("192.0.2.77", PROTOCOL.icmp, icmp(TOO_LARGE, joined(mtu, about(LEASED, ipv4))));
    const [told] = await lab.world.exchange(inbound, guest);
    expect(told).toMatchObject({ destination: INSIDE, icmpType: TOO_LARGE });
    const within = (frame: Uint8Array, at: number) => frame.subarray(14 + 20 + 8 + at, 14 + 20 + 8 + at + 4).join(".");
    expect(within(told!.frame, 12)).toBe(INSIDE);
    expect(told!.frame.subarray(14 + 20 + 6, 14 + 20 + 8)).toEqual(mtu.subarray(2));
    expect(isWhole(told!.frame)).toBe(true);
    const outbound = fromGuest(ipv4, PROTOCOL.icmp, icmp(TOO_LARGE, joined([0, 0, 0, 0], about(ipv4, INSIDE))));
    const [said] = await guest.exchange(outbound, lab.world);
    expect(said).toMatchObject({ source: LEASED, icmpType: TOO_LARGE });
    expect(within(said!.frame, 16)).toBe(LEASED);
    expect(isWhole(said!.frame)).toBe(true);
  });

  test("tells the guest, at its own address, of a packet that went nowhere", async () => {
    const guest = lab.guest();
    const dying = { source: INSIDE, destination: ipv4, protocol: PROTOCOL.udp, hops: 1 };
    const told = await guest.exchange(guest.frame(dying, udp(1, 2)), guest);
    expect(told).toMatchObject([{ destination: INSIDE, icmpType: 11 }]);
    const [{ frame } = { frame: new Uint8Array() }] = told;
    expect(frame.subarray(14 + 20 + 8 + 12, 14 + 20 + 8 + 16).join(".")).toBe(INSIDE);
    expect(isWhole(frame)).toBe(true);
  });

  test("has errors that the guest's kernel believes", async () => {
    const [guest, world] = [lab.guest(), await lab.openWorld()];
    const inGuest = ["nsenter", `--net=/run/netns/${guest.namespace}`];
    const way = [`addr add ${INSIDE}/28 dev guest`, `route add default via ${GATEWAY_INSIDE}`];
    await outputOf(["ip", "-n", guest.namespace, "-batch", "-"], { input: new Blob([way.join("\n")]) });
    await outputOf(["ip", "-n", lab.outside, "route", "add", LEASED, "via", "192.0.2.1"]);
    const ask = `import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(5)
asking.connect(("${world}", 9))
asking.send(b"anybody?")
try: asking.recv(1)
except ConnectionRefusedError: print("refused")`;
    expect(await outputOf([...inGuest, "/usr/bin/python3", "-c", ask])).toBe("refused\n");
  });

  test("tracks no connection", async () => {
    const tracked = await outputOf(lab.inRouter(["cat", "/proc/net/nf_conntrack"])).catch(() => "");
    expect(tracked).toBe("");
  });
});
