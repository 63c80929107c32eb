// The guard of the host's own interface, on the laboratory's uplink: what it takes nothing from, lists that change, programs
// of others that it leaves alone, and what is left when it is turned off.
import { afterEach, beforeEach, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BpfObject } from "../../ffi/libbpf/objects.ts";
import { ensureBpfFileSystem } from "../../plugins/host/ebpf/bpf-file-system.ts";
import { PROTOCOL, udp } from "../harness/frames.ts";
import { Lab, WORLD } from "../harness/lab.ts";
import { ended, outputOf } from "../harness/program.ts";

setDefaultTimeout(60_000);

const OBJECT = join(import.meta.dir, "../../dist/native/fluxvm_xdp.bpf.o");
const OTHERS = ["203.0.113.9", "2001:db8:1:0:0:0:0:9"] as const;

let lab: Lab;
let folder = "";

beforeEach(async () => {
  lab = await Lab.make({ guests: 1 });
  folder = await mkdtemp(join(tmpdir(), "fluxvm-guard-"));
});

afterEach(async () => {
  await ended(["umount", join(folder, "bpf")]);
  await rm(folder, { recursive: true });
  await lab[Symbol.asyncDispose]();
});

/** What it rejects with, or nothing. */
async function ensure(changes: Readonly<Record<string, unknown>> = {}): Promise<{ code?: string; message?: string }> {
  const settings = {
    enabled: true,
    interface: "uplink",
    blockCidrs: [],
    object: { path: null, builtInPath: OBJECT },
    pinRoot: join(folder, "bpf"),
    runDir: join(folder, "run"),
    stateDir: join(folder, "state"),
    besideCilium: false,
    ...changes,
  };
  const program = join(import.meta.dir, "../harness/guard-host.ts");
  return JSON.parse(await outputOf(lab.inRouter([process.execPath, program, JSON.stringify(settings)])));
}

/** Whether a packet with this source gets from the world to the guest. */
async function comesIn(source: string): Promise<boolean> {
  const guest = lab.guest();
  const destination = source.includes(":") ? guest.ipv6 : guest.ipv4;
  const frame = lab.world.frame({ source, destination, protocol: PROTOCOL.udp }, udp(53, 4000));
  return (await lab.world.exchange(frame, guest)).length > 0;
}

const uplink = (): Promise<string> => outputOf(lab.inRouter(["ip", "-d", "link", "show", "uplink"]));

test("nothing comes in from what is listed, in both families, and the rest does", async () => {
  expect(await ensure({ blockCidrs: ["198.51.100.0/24", "2001:db8::/64"] })).toEqual({});
  expect([await comesIn(WORLD.ipv4), await comesIn(WORLD.ipv6)]).toEqual([false, false]);
  expect([await comesIn(OTHERS[0]), await comesIn(OTHERS[1])]).toEqual([true, true]);
});

test("a list that changes is another content of the same maps; off is off, and nothing is left", async () => {
  await ensure({ blockCidrs: ["198.51.100.0/24", "2001:db8::/64"] });
  const program = (await uplink()).match(/prog\/xdp id (\d+)/)?.[1];
  expect(program).toBeDefined();
  expect(await ensure({ blockCidrs: ["2001:db8::/64", `${OTHERS[0]}/32`] })).toEqual({});
  expect((await uplink()).match(/prog\/xdp id (\d+)/)?.[1]).toBe(program as string);
  expect([await comesIn(WORLD.ipv4), await comesIn(WORLD.ipv6)]).toEqual([true, false]);
  expect(await comesIn(OTHERS[0])).toBe(false);
  expect(await ensure({ enabled: false })).toEqual({});
  expect(await uplink()).not.toContain("xdp");
  expect(await comesIn(OTHERS[0])).toBe(true);
  expect(existsSync(join(folder, "bpf/xdp"))).toBe(false);
  expect(await ensure({ enabled: false })).toEqual({});
});

test("while one list takes the place of another, nothing comes in from what both name", async () => {
  const guest = lab.guest();
  // Long lists, so that there is a while in between; what both name comes first in the map, and last in the list.
  const listed = (first: number, wide: number) => ({
    blockCidrs: [
      ...Array.from({ length: 2_000 }, (_, index) => `${first}.${index >> 8}.${index & 0xff}.0/24`),
      `198.51.100.0/${wide}`,
      `2001:db8::/${wide + 40}`,
    ],
  });
  const lists = [listed(201, 25), listed(200, 24)] as const;
  await ensure(lists[1]);
  await guest.wire.count();
  const frames = [
    [WORLD.ipv4, guest.ipv4],
    [WORLD.ipv6, guest.ipv6],
  ].map(([source = "", destination = ""]) =>
    lab.world.frame({ source, destination, protocol: PROTOCOL.udp }, udp(53, 4000)),
  );
  let isOver = false;
  const flood = lab.world.wire.flood({ frames, perSecond: 20_000, count: 60_000 }).finally(() => (isOver = true));
  let turns = 0;
  while (!isOver || turns < 4) expect(await ensure(lists[turns++ % 2])).toEqual({});
  expect((await flood).sent).toBe(60_000);
  await lab.pause();
  expect([...(await guest.wire.counted()).keys()].filter((key) => key.includes("/17/"))).toEqual([]);
}, 120_000);

test("a program of somebody else stays, whether ours was there before or not", async () => {
  await ensureBpfFileSystem(join(folder, "bpf"));
  await using theirs = await BpfObject.load(await Bun.file(OBJECT).bytes(), { name: "theirs" });
  const pin = join(folder, "bpf/theirs");
  await theirs.program("fluxvm_xdp_guard").pin(pin);
  await outputOf(lab.inRouter(["ip", "link", "set", "uplink", "xdpgeneric", "pinned", pin]));
  const before = await uplink();
  expect(await ensure()).toMatchObject({ code: "DATAPLANE_FAILED", message: expect.stringContaining("uplink") });
  expect(await ensure({ enabled: false })).toEqual({});
  expect(await uplink()).toBe(before);
});

test("with Cilium, ours goes and the rest is an error", async () => {
  await ensure({ blockCidrs: ["198.51.100.0/24"] });
  expect(await ensure({ besideCilium: true })).toMatchObject({ code: "CONFIG_INVALID" });
  expect(await uplink()).not.toContain("xdp");
});

test("what cannot be is said: no interface, an unknown one, a file that is no object", async () => {
  expect(await ensure({ interface: null })).toMatchObject({ code: "CONFIG_INVALID" });
  expect(await ensure({ interface: "nothing0" })).toMatchObject({ code: "CONFIG_INVALID" });
  const path = join(folder, "bad.o");
  await writeFile(path, `\x7fELF${"x".repeat(400)}`, { mode: 0o600 });
  expect(await ensure({ object: { path, builtInPath: OBJECT } })).toMatchObject({
    code: "DATAPLANE_FAILED",
    message: expect.stringContaining(path),
  });
  expect(await uplink()).not.toContain("xdp");
});
