// The eBPF dataplane on real interfaces: it enforces, tells, moves connections, and leaves nothing behind. Once with links,
// once with classifiers.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { join } from "node:path";
import { policyOf } from "../harness/dataplane.ts";
import { EbpfLab, METHODS, namesIn, NOTHING, syn } from "../harness/ebpf-lab.ts";
import { PROTOCOL, TCP, tcp } from "../harness/frames.ts";
import { WORLD } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const { ipv4, ipv6 } = WORLD;

describe.each(METHODS)("with %s", (_, method, env) => {
  const place = EbpfLab.ofEach({ guests: 2 }, env);

  test("a policy holds from attach on, can be replaced, and is gone with detach", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { allowCidrs: ["198.51.100.0/24"] }));
    expect(await syn(guest, ipv4, 443)).toBe(true);
    expect(await syn(guest, "203.0.113.9", 443)).toBe(false);
    expect(await syn(guest, ipv6, 443)).toBe(false);
    const next = policyOf(guest, { allowCidrs: ["2001:db8::/32"] });
    await dataplane.setPolicy(guest, next);
    expect(await syn(guest, ipv4, 443)).toBe(false);
    expect(await syn(guest, ipv6, 443)).toBe(true);
    expect(await dataplane.attachment(guest)).toEqual({
      attached: true,
      interface: guest.network.hostInterface,
      pinDir: dataplane.pinRoot,
      schemaVersion: 1,
      schemaCompatible: true,
      policyFingerprint: next.fingerprint,
      method,
    });
    await dataplane.detach(guest);
    expect(await dataplane.attachment(guest)).toMatchObject({ attached: false, method: null });
    expect(await place.remains()).toEqual(NOTHING);
    expect(await place.filters(guest)).not.toContain("fluxvm");
    expect(await syn(guest, ipv4, 443)).toBe(true);
  });

  test("what happened is told: totals, flows, denials with their reason, connections", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] }));
    await syn(guest, ipv4, 443);
    await syn(guest, ipv4, 80);
    await syn(guest, ipv4, 80);
    const stats = await dataplane.stats(guest);
    expect([stats.allowedPackets, stats.droppedPackets]).toEqual([1n, 2n]);
    const common = { source: guest.ipv4, destination: ipv4, sourcePort: 40_000, protocol: 6, family: 4 };
    expect(await dataplane.flows(guest)).toMatchObject([
      { ...common, destinationPort: 80, verdict: "drop", packets: 2n },
      { ...common, destinationPort: 443, verdict: "allow", packets: 1n },
    ]);
    expect(await dataplane.drops(guest)).toMatchObject([
      { ...common, destinationPort: 80, reason: "l4-miss", reasonCode: 5, action: "drop", packets: 2n },
    ]);
    expect(await dataplane.connections(guest)).toMatchObject([{ ...common, destinationPort: 443, origin: "egress" }]);
  });

  test("two sandboxes have nothing of each other", async () => {
    const { dataplane } = place;
    const [one, other] = [place.guest(0), place.guest(1)];
    await dataplane.attach(one, policyOf(one, { defaultAllow: false }));
    await dataplane.attach(other, policyOf(other, { defaultAllow: true }));
    expect([await syn(one, ipv4, 443), await syn(other, ipv4, 443)]).toEqual([false, true]);
    expect((await dataplane.stats(one)).allowedPackets).toBe(0n);
    expect(await dataplane.flows(other)).toHaveLength(1);
    await dataplane.detach(one);
    expect(await syn(other, ipv4, 443)).toBe(true);
  });

  test("a policy for which there is no room is refused, and the old one stays in force", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { allowCidrs: ["198.51.100.0/24"] }));
    const allowPorts = Array.from({ length: 65_535 }, (_, at) => ({ protocol: "tcp" as const, port: at + 1 }));
    const tooMuch = policyOf(guest, {
      allowPorts: [...allowPorts, ...allowPorts.map(({ port }) => ({ protocol: "udp" as const, port }))],
    });
    await expect(dataplane.setPolicy(guest, tooMuch)).rejects.toMatchObject({ code: "DATAPLANE_FAILED" });
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([true, false]);
    await dataplane.setPolicy(guest, policyOf(guest, { allowPorts: allowPorts.slice(0, 60_000) }));
    expect(await syn(guest, ipv6, 443)).toBe(true);
  });

  test("connections go on where they are moved to, and nothing else does until it resumes", async () => {
    const { dataplane } = place;
    const [here, there] = [place.guest(0), place.guest(1)];
    const policy = { allowPorts: [{ protocol: "tcp" as const, port: 443 }], identity: 0x1000_0009 };
    await dataplane.attach(here, policyOf(here, policy));
    const head = { destination: ipv4, protocol: PROTOCOL.tcp };
    await here.reaches(head, tcp(40_001, 443, TCP.syn));
    await dataplane.setPhase(here, "quiescing");
    expect(await here.reaches(head, tcp(40_001, 443, TCP.ack))).toBe(true);
    expect(await here.reaches(head, tcp(40_002, 443, TCP.syn))).toBe(false);
    const document = await dataplane.exportConnections(here);
    expect(document).toMatchObject({ connections: [{ source_port: 40_001, destination_port: 443, protocol: 6 }] });

    // The other guest stands for the same sandbox on its new host: its packets have the first one's address.
    const moved = { ...policyOf(here, policy), source: { ...policyOf(here).source, antiSpoof: false } };
    await dataplane.attach(there, moved);
    await dataplane.setPhase(there, "restoring");
    const sameSandbox = { ...document, sandbox_id: there.sandboxId };
    expect(await there.reaches({ ...head, source: here.ipv4 }, tcp(40_001, 443, TCP.ack))).toBe(false);
    await dataplane.importConnections(there, sameSandbox);
    expect(await there.reaches({ ...head, source: here.ipv4 }, tcp(40_001, 443, TCP.ack))).toBe(true);
    expect(await there.reaches({ ...head, source: here.ipv4 }, tcp(40_002, 443, TCP.syn))).toBe(false);
    expect((await dataplane.drops(there)).map(({ reason }) => reason)).toContain("migration-restoring");
    await dataplane.setPhase(there, "running");
    expect(await there.reaches({ ...head, source: here.ipv4 }, tcp(40_002, 443, TCP.syn))).toBe(true);
    await expect(dataplane.importConnections(there, document)).rejects.toMatchObject({ code: "BAD_REQUEST" });
  });
});

test.each(["auto", "off"])("what a guest sends by a macvtap is decided where it leaves (%s)", async (preference) => {
  await using place = await EbpfLab.open({}, { FLUXVM_TCX: preference });
  const { dataplane } = place;
  const commands = [
    "link add lower type veth peer name beyond",
    "link add link lower name ephmacvtap type macvtap mode bridge",
    ...["lower", "beyond", "ephmacvtap"].map((link) => `link set ${link} up`),
  ];
  await outputOf(place.lab.inRouter(["ip", "-batch", "-"]), { input: new Blob([commands.join("\n")]) });
  const [link] = JSON.parse(await outputOf(place.lab.inRouter(["ip", "-j", "link", "show", "ephmacvtap"])));
  const numbers = `/sys/class/macvtap/tap${link.ifindex}/dev`;
  const [major = "", minor = ""] = (await outputOf(["ip", "netns", "exec", place.lab.router, "cat", numbers]))
    .trim()
    .split(":");
  const device = join(dataplane.folder, "tap");
  await outputOf(["mknod", device, "c", major, minor]);

  const guest = place.guest();
  const network = {
    ...guest.network,
    mode: "macvtap" as const,
    hook: "bridged" as const,
    hostInterface: "ephmacvtap",
    hostInterfaceIndex: Number(link.ifindex),
  };
  const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
  await dataplane.attachAll([{ ...dataplane.requestOf(guest, policy), network }]);
  for (const port of [443, 80, 81]) {
    const head = { source: guest.ipv4, destination: ipv4, protocol: PROTOCOL.tcp };
    const frame = guest.frame(head, tcp(40_000, port, TCP.syn));
    // Before the frame is a header of the virtual network card, which says nothing here.
    const written = new Blob([new Uint8Array(10), new Uint8Array(frame)]);
    await outputOf(place.lab.inRouter(["dd", "bs=4096", `of=${device}`, "conv=notrunc"]), { input: written });
  }
  // The interface's own kernel may have said something, too.
  const flows = (await dataplane.flows(guest)).filter(({ source }) => source === guest.ipv4);
  const verdicts = flows.map(({ destinationPort, verdict, packets }) => [destinationPort, verdict, packets]);
  expect(verdicts.toSorted()).toEqual([
    [443, "allow", 1n],
    [80, "drop", 1n],
    [81, "drop", 1n],
  ]);
  await dataplane.detach(guest);
  expect(await namesIn(join(dataplane.pinRoot, "links"))).toEqual([]);
});

test("fifty at once, and all of them away again", async () => {
  await using place = await EbpfLab.open();
  const { dataplane } = place;
  const batch = Array.from({ length: 50 }, (_, at) => `link add vhmany${at} type veth peer name vnmany${at}`);
  await outputOf(place.lab.inRouter(["ip", "-batch", "-"]), { input: new Blob([batch.join("\n")]) });
  const links = JSON.parse(await outputOf(place.lab.inRouter(["ip", "-j", "link"]))) as {
    ifname: string;
    ifindex: number;
  }[];
  const requests = links
    .filter(({ ifname }) => ifname.startsWith("vhmany"))
    .map(({ ifname, ifindex }) => {
      const network = { ...place.guest().network, hostInterface: ifname, hostInterfaceIndex: ifindex };
      const policy = policyOf(place.guest(), { allowCidrs: ["198.51.100.0/24"], identity: 0x1000_0000 + ifindex });
      return { sandboxId: ifname, shortName: ifname.slice(2).padEnd(12, "a"), network, policy };
    });
  expect(requests).toHaveLength(50);
  await dataplane.attachAll(requests);
  await dataplane.kill();
  await dataplane.start();
  expect((await dataplane.repair(requests)).intact).toHaveLength(50);
  expect(await namesIn(join(dataplane.pinRoot, "links"))).toHaveLength(100);
  expect((await dataplane.repair([])).orphans).toBe(50);
  expect(await place.remains()).toEqual(NOTHING);
});
