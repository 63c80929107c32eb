// The eBPF dataplane when somebody takes apart what it attached: an agent that runs mends it, the next one repairs it, and
// what is not its own it leaves alone. Once with links, once with classifiers.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { TcxLink } from "../../ffi/libbpf/attachments.ts";
import { BpfObject } from "../../ffi/libbpf/objects.ts";
import { ensureBpfFileSystem } from "../../plugins/host/ebpf/bpf-file-system.ts";
import { policyOf } from "../harness/dataplane.ts";
import { EbpfLab, METHODS, namesIn, NOTHING, syn } from "../harness/ebpf-lab.ts";
import { type Guest, WORLD } from "../harness/lab.ts";
import { outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const OBJECT = join(import.meta.dir, "../../dist/native/fluxvm_tc.bpf.o");
const { ipv4, ipv6 } = WORLD;

describe.each(METHODS)("with %s", (_, method, env) => {
  const place = EbpfLab.ofEach({ guests: 2 }, env);

  /** As an administrator might, by mistake. Resolves once packets pass undecided: a link ends when the kernel comes to it. */
  async function takeProgram(guest: Guest): Promise<void> {
    if (method === "tcx") await rm(join(place.dataplane.pinRoot, "links", `${guest.shortName}-in`));
    else await outputOf(place.lab.inRouter(["tc", "filter", "del", "dev", guest.network.hostInterface, "ingress"]));
    while (!(await syn(guest, ipv4, 443))) await Bun.sleep(20);
  }

  test("an agent that runs puts back what somebody took, and what is known of connections stays", async () => {
    const { dataplane } = place;
    const [guest, other] = [place.guest(0), place.guest(1)];
    const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
    await dataplane.attach(guest, policy);
    await dataplane.attach(other, policyOf(other));
    expect(await syn(guest, ipv4, 443)).toBe(true);
    expect(await dataplane.mend(guest, policy)).toBe(false);

    await takeProgram(guest);
    expect((await dataplane.attachment(guest)).attached).toBe(false);
    expect(await dataplane.mend(guest, policy)).toBe(true);
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
    expect(await dataplane.attachment(guest)).toMatchObject({ attached: true, policyFingerprint: policy.fingerprint });
    expect(await dataplane.connections(guest)).toHaveLength(1);
    expect((await dataplane.attachment(other)).attached).toBe(true);
    expect(await dataplane.mend(guest, policy)).toBe(false);
  });

  test("everything that is pinned is there again, with what is in the maps, for this agent and the next", async () => {
    const { dataplane } = place;
    const [guest, later] = [place.guest(0), place.guest(1)];
    const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
    await dataplane.attach(guest, policy);
    await syn(guest, ipv4, 80);
    const pins = async () => (await readdir(dataplane.pinRoot, { recursive: true })).toSorted();
    const before = await pins();
    for (const name of ["progs", "maps", "links"]) await rm(join(dataplane.pinRoot, name), { recursive: true });
    if (method === "tcx") while (!(await syn(guest, ipv4, 80))) await Bun.sleep(20);
    const { attached } = await dataplane.attachment(guest);
    expect(attached).toBe(method === "tc");
    expect((await dataplane.health()).notes).toEqual([expect.stringContaining("gone")]);

    await dataplane.attach(later, policyOf(later, { defaultAllow: false }));
    expect([await syn(later, ipv4, 443), (await dataplane.attachment(later)).attached]).toEqual([false, true]);
    expect(await dataplane.mend(guest, policy)).toBe(method === "tcx");
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
    expect((await dataplane.stats(guest)).droppedPackets).toBeGreaterThanOrEqual(2n);
    expect((await dataplane.health()).notes).toEqual([]);
    await dataplane.detach(later);
    expect(await pins()).toEqual(before);

    await place.restart();
    expect((await dataplane.repair([dataplane.requestOf(guest, policy)])).intact).toEqual([guest.sandboxId]);
    await dataplane.detach(guest);
    expect(await place.remains()).toEqual(NOTHING);
  });

  test("with another place for pins, nothing of the one before goes on deciding", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 80 }] }));
    await dataplane.kill();
    await dataplane.start({}, join(dataplane.pinRoot, "moved"));
    const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
    expect((await dataplane.repair([dataplane.requestOf(guest, policy)])).repaired).toEqual([guest.sandboxId]);
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
    expect(await Promise.all(["links", "maps", "progs"].map((name) => namesIn(join(dataplane.pinRoot, name))))).toEqual(
      [[], [], []],
    );
    await dataplane.detach(guest);
    expect(await namesIn(join(dataplane.pinRoot, "moved/links"))).toEqual([]);
    expect(await place.remains()).toEqual(NOTHING);
    expect(await place.filters(guest)).not.toContain("fluxvm");
  });

  test("an interface that is gone cannot be mended, and is not said to be attached", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest);
    await dataplane.attach(guest, policy);
    await outputOf(place.lab.inRouter(["ip", "link", "del", guest.network.hostInterface]));
    expect((await dataplane.attachment(guest)).attached).toBe(false);
    await expect(dataplane.mend(guest, policy)).rejects.toMatchObject({ code: "DATAPLANE_FAILED" });
    await dataplane.detach(guest);
    expect(await place.remains()).toEqual(NOTHING);
  });

  test("a hook that somebody took our program from is repaired", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest, { defaultAllow: false });
    await dataplane.attach(guest, policy);
    await takeProgram(guest);
    expect((await dataplane.attachment(guest)).attached).toBe(false);
    expect((await dataplane.repair([dataplane.requestOf(guest, policy)])).repaired).toEqual([guest.sandboxId]);
    expect(await syn(guest, ipv4, 443)).toBe(false);
  });

  test("a new policy mends a hook that somebody took our program from", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    await dataplane.attach(guest, policyOf(guest, { defaultAllow: false }));
    await takeProgram(guest);
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["2001:db8::/32"] }));
    // Its turn is behind what mends.
    await dataplane.setPolicy(guest, policyOf(guest, { allowCidrs: ["198.51.100.0/24"] }));
    expect((await dataplane.attachment(guest)).attached).toBe(true);
    expect([await syn(guest, ipv4, 443), await syn(guest, ipv6, 443)]).toEqual([true, false]);
  });

  test("an interface that was made again is attached again", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest, { defaultAllow: false });
    await dataplane.attach(guest, policy);
    const request = dataplane.requestOf(guest, policy);
    const again = place.guest(1).network;
    const moved = { ...request, network: again };
    expect((await dataplane.repair([moved])).repaired).toEqual([guest.sandboxId]);
    expect(await syn(place.guest(1), ipv4, 443)).toBe(false);
    expect(await syn(guest, ipv4, 443)).toBe(true);
  });
});

test("a link that somebody detached, and left where it was, is attached again", async () => {
  await using place = await EbpfLab.open({}, { FLUXVM_TCX: "auto" });
  const { dataplane } = place;
  const guest = place.guest();
  const policy = policyOf(guest, { allowPorts: [{ protocol: "tcp", port: 443 }] });
  await dataplane.attach(guest, policy);
  for (const direction of ["in", "out"]) {
    await using link = await TcxLink.openPinned(join(dataplane.pinRoot, "links", `${guest.shortName}-${direction}`));
    await link.detach();
  }
  expect((await dataplane.attachment(guest)).attached).toBe(false);
  expect(await dataplane.mend(guest, policy)).toBe(true);
  expect((await dataplane.attachment(guest)).attached).toBe(true);
  expect([await syn(guest, ipv4, 443), await syn(guest, ipv4, 80)]).toEqual([true, false]);
  await dataplane.detach(guest);
});

describe("a classifier of somebody else in our place", () => {
  const place = EbpfLab.ofEach({}, { FLUXVM_TCX: "off" });

  test("is an error that names it, and stays", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const device = guest.network.hostInterface;
    await outputOf(place.lab.inRouter(["tc", "qdisc", "add", "dev", device, "clsact"]));
    const theirs = ["tc", "filter", "add", "dev", device, "ingress", "pref", "49152", "handle", "1"];
    await outputOf(place.lab.inRouter([...theirs, "bpf", "da", "object-pinned", await somebodysProgram(place)]));
    const before = await place.filters(guest);
    await expect(dataplane.attach(guest, policyOf(guest, { defaultAllow: false }))).rejects.toMatchObject({
      code: "DATAPLANE_FAILED",
      message: expect.stringContaining("49152"),
    });
    await dataplane.detach(guest);
    expect(await place.filters(guest)).toBe(before);
    expect(await place.remains()).toEqual(NOTHING);
  });

  test("put there instead of ours is not taken for ours, and repair says so", async () => {
    const { dataplane } = place;
    const guest = place.guest();
    const policy = policyOf(guest);
    await dataplane.attach(guest, policy);
    const theirs = ["tc", "filter", "replace", "dev", guest.network.hostInterface, "ingress", "pref", "49152"];
    const program = await somebodysProgram(place);
    await outputOf(place.lab.inRouter([...theirs, "handle", "1", "bpf", "da", "object-pinned", program]));
    const before = await place.filters(guest);
    expect((await dataplane.attachment(guest)).attached).toBe(false);
    const { failed } = await dataplane.repair([dataplane.requestOf(guest, policy)]);
    expect(failed).toMatchObject([{ sandboxId: guest.sandboxId, reason: expect.stringContaining("another program") }]);
    await dataplane.detach(guest);
    expect(await place.filters(guest)).toContain(before.match(/id \d+/)?.[0] ?? "none");
  });
});

/** Any program that is not the one of interfaces: the one for what leaves, of a set that is not this one. */
async function somebodysProgram({ dataplane }: EbpfLab): Promise<string> {
  await ensureBpfFileSystem(dataplane.pinRoot);
  await using object = await BpfObject.load(await Bun.file(OBJECT).bytes(), { name: "theirs" });
  const pin = join(dataplane.pinRoot, "theirs");
  await object.program("fluxvm_ingress").pin(pin);
  return pin;
}
