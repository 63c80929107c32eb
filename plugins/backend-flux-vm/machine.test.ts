// The driver on the hypervisor of this build and this host's KVM, with a kernel of a few instructions: what a machine has and
// has not, how it ends, its snapshots, and that it is found again and ended by its rows alone.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { constants, existsSync } from "node:fs";
import {
  access,
  chmod,
  chown,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  readlink,
  rm,
  stat,
  truncate,
  writeFile,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { mount, unmount } from "../../ffi/host/mounts.ts";
import type { Backend, Instance, LaunchRequest } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import { ConformanceJournal } from "../../src/conformance/journal.ts";
import { isAlive } from "../host/process.ts";
import { makePlace, MEMORY_MIB } from "./testing/place.ts";

const isRoot = process.getuid?.() === 0;
const UID = 1_999_999_004;
const MIB = 1024 * 1024;
/** KVM of a host that is itself emulated is slow to begin. */
const WAIT_MS = 20_000;

let root: string;
let backend: Backend;
let journal: ConformanceJournal;
let request: LaunchRequest;
const spec = (changes: JsonObject = {}): JsonObject => ({ ...request.spec, ...changes });

beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "flux-vm-"));
  await chmod(root, 0o711);
  const shortName = `ft${process.pid}`.padEnd(12, "a").slice(0, 12);
  const place = await makePlace(root, shortName, isRoot ? UID : null);
  backend = place.backend;
  journal = new ConformanceJournal(backend.releases);
  request = { ...place.request, resources: journal };
});
afterAll(async () => {
  await journal.releaseAll();
  await rm(root, { recursive: true, force: true });
});

async function withMachine(
  use: (machine: Instance) => Promise<void>,
  changes: JsonObject = {},
  restore?: string,
  network: SandboxNetwork | null = null,
): Promise<void> {
  const wanted = { ...request, spec: spec(changes), network };
  const machine = await backend.launch(restore === undefined ? wanted : { ...wanted, restore });
  try {
    await use(machine);
  } finally {
    await machine.stop(0).catch(() => undefined);
    await journal.releaseAll();
  }
}

const within = <T>(work: Promise<T>): Promise<T | null> => Promise.race([work, Bun.sleep(WAIT_MS).then(() => null)]);
const status = (pid: number): Promise<string> => readFile(`/proc/${pid}/status`, "latin1");
const consoleText = (): Promise<string> => readFile(join(request.instanceDir, "console.log"), "latin1").catch(() => "");
const mounts = async (): Promise<string[]> =>
  (await readFile("/proc/self/mounts", "utf8")).split("\n").filter((line) => line.includes(root));

async function says(text: string): Promise<void> {
  const deadlineMs = performance.now() + WAIT_MS;
  while (!(await consoleText()).endsWith(text)) {
    if (performance.now() > deadlineMs) throw new Error(`the console ends with ${(await consoleText()).slice(-100)}`);
    await Bun.sleep(5);
  }
}

test("an image with a larger disk than the host's operator allows is refused", async () => {
  const [image, { kernel = "" }] = [join(root, "huge.raw"), request.spec];
  await writeFile(image, "");
  await truncate(image, 65 * 1024 * MIB);
  const planned = backend.plan({ image, kernel });
  await expect(planned).rejects.toMatchObject({ code: "BAD_REQUEST", message: expect.stringContaining("at most 64") });
  await rm(image);
});

/** Whether this user may open the device. */
const hasKvm = await access("/dev/kvm", constants.R_OK | constants.W_OK).then(
  () => true,
  () => false,
);

describe.skipIf(!hasKvm)("a machine", () => {
  test.skipIf(!isRoot)(
    "has a user of its own in a jail, without rights, and its secret is in no argument",
    async () => {
      await withMachine(async ({ identity, visiblePid }) => {
        await says("hi\n");
        expect(visiblePid).not.toBe(identity.pid);
        for (const pid of [identity.pid, visiblePid ?? 0]) {
          const facts = await status(pid);
          expect(facts).toMatch(new RegExp(`^Uid:\\t${UID}\\t${UID}\\t${UID}\\t${UID}`, "m"));
          for (const set of ["CapEff", "CapPrm", "CapBnd"]) expect(facts).toMatch(new RegExp(`^${set}:\\t0+$`, "m"));
          const words = await Promise.all(
            ["cmdline", "environ"].map((file) => readFile(`/proc/${pid}/${file}`, "latin1")),
          );
          expect(words.join("")).not.toContain(request.token);
        }
        const open = await readdir(`/proc/${visiblePid}/fd`);
        const targets = await Promise.all(
          open.map((fd) => readlink(`/proc/${visiblePid}/fd/${fd}`).catch(() => "closed")),
        );
        expect(targets.filter((target) => target.includes(".log"))).toEqual([]);
        const inside = await status(visiblePid ?? 0);
        expect(inside).toMatch(/^NoNewPrivs:\t1$/m);
        expect(inside).toMatch(/^Seccomp:\t2$/m);
        expect(await readFile(join(request.instanceDir, "boot.json"), "utf8")).not.toContain(request.token);
      });
    },
  );

  test.skipIf(!isRoot)("has its memory where nobody else reaches it, counted with its group", async () => {
    await withMachine(async (machine) => {
      expect(await mounts()).toEqual([]);
      expect(await readdir(request.instanceDir)).not.toContain("memory");
      const maps = await readFile(`/proc/${machine.visiblePid}/maps`, "latin1");
      expect(maps).toMatch(/rw-s .*\/ram/);
      const { memoryMaxBytes } = (await backend.resources?.use(machine)) ?? {};
      expect(memoryMaxBytes).toBeGreaterThan(MEMORY_MIB * MIB);
      const { rssKib } = (await backend.resources?.memory(machine)) ?? {};
      expect(rssKib).toBeGreaterThan(1000);
    });
  });

  test("is frozen and goes on", async () => {
    await withMachine(async (machine) => {
      for (const _ of [1, 2]) {
        await backend.pause?.pause(machine);
        await backend.pause?.resume(machine);
      }
    });
  });

  test("never writes to its image, and has its layer in its volume", async () => {
    const before = await stat(request.spec.image as string);
    await withMachine(async () => {
      expect((await stat(join(request.volume.path, "disk.layer"))).uid).toBe(isRoot ? UID : (process.getuid?.() ?? 0));
    });
    expect((await stat(request.spec.image as string)).mtimeMs).toBe(before.mtimeMs);
  });

  test("has snapshots, running and not, is put back in place, and goes on from one", async () => {
    const { snapshots } = backend;
    const { volume } = request;
    const tags = async (machine: Instance | null) => (await snapshots?.list(machine, volume))?.map(({ tag }) => tag);
    await withMachine(async (machine) => {
      const saved = await snapshots?.save(machine, volume, "first");
      expect(saved).toMatchObject({ tag: "first" });
      expect(saved?.bytes).toBeGreaterThan(0);
      expect(Math.abs(Date.now() - (saved?.takenAtUnixMs ?? 0))).toBeLessThan(60_000);
      await expect(snapshots?.save(machine, volume, "first")).rejects.toMatchObject({ code: "SNAPSHOT_EXISTS" });
      await backend.pause?.pause(machine);
      await snapshots?.save(machine, volume, "second");
      await snapshots?.restore?.(machine, volume, "second");
      // A machine that was put back runs, also one that was frozen.
      await backend.pause?.pause(machine);
      await backend.pause?.resume(machine);
      await snapshots?.restore?.(machine, volume, "first");
      await snapshots?.restore?.(machine, volume, "first");
      await expect(snapshots?.restore?.(machine, volume, "none")).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
      expect(await tags(machine)).toEqual(["first", "second"]);
    });
    await withMachine(
      async (machine) => {
        await backend.pause?.pause(machine);
        await backend.pause?.resume(machine);
        await snapshots?.remove(machine, volume, "first");
      },
      {},
      "first",
    );
    const refused = backend.launch({ ...request, restore: "first" });
    await expect(refused).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    await journal.releaseAll();
    await snapshots?.remove(null, volume, "second");
    expect(await tags(null)).toEqual([]);
    expect(await readdir(volume.path)).toEqual(["disk.layer"]);
  });

  test("outlives its agent and is found again", async () => {
    await withMachine(async (machine) => {
      const { identity } = machine;
      await machine.detach();
      const adopted = await backend.adopt?.({ ...request, identity });
      expect([adopted?.identity, adopted?.visiblePid]).toEqual([identity, machine.visiblePid]);
      if (!adopted) throw new Error("it was not adopted");
      await backend.pause?.pause(adopted);
      await backend.pause?.resume(adopted);
      await adopted.stop(0);
      expect((await adopted.ended).reason).toBe("stopped");
      expect(await backend.adopt?.({ ...request, identity })).toBeNull();
    });
  });

  test.each([
    ["off", "the guest powered off"],
    ["reset", "the guest asked for a reset, which ends its machine"],
    ["crash", "the guest crashed"],
  ])("whose guest ends with %s has ended, and says so", async (kernel_args, reason) => {
    const machine = await backend.launch({ ...request, spec: spec({ kernel_args }) }).catch((error: unknown) => error);
    try {
      // A guest that is quicker than its launch makes that fail, and says why as well.
      if (machine instanceof Error) expect(machine.message).toContain("the guest");
      else expect((await within((machine as Instance).ended))?.reason).toBe(reason);
    } finally {
      await journal.releaseAll();
    }
  });

  test("that is killed has ended at once with all its processes, and says so", async () => {
    await withMachine(async (machine) => {
      process.kill(machine.identity.pid, "SIGKILL");
      expect((await within(machine.ended))?.reason).toContain("killed");
      await expect(machine.channel()).rejects.toMatchObject({ code: "SANDBOX_GONE" });
      while ((await status(machine.visiblePid ?? 0).catch(() => null)) !== null) await Bun.sleep(5);
    });
  });

  test("is launched where an earlier one left directories in the place of its sockets", async () => {
    for (const name of ["control.sock", "vsock.sock", "serial.sock"]) {
      const place = join(request.socketDir, name);
      await rm(place, { force: true });
      await mkdir(join(place, "full"), { recursive: true });
    }
    await withMachine(async (machine) => {
      await backend.pause?.pause(machine);
    });
  });

  test("starts from a snapshot whatever it has done to its disk", async () => {
    const { snapshots } = backend;
    const { volume } = request;
    await withMachine(async (machine) => void (await snapshots?.save(machine, volume, "clean")));
    await writeFile(join(volume.path, "disk.layer"), "garbage");
    const refused = backend.launch({ ...request, spec: spec({ kernel: root }) });
    await expect(refused).rejects.toMatchObject({ code: "LAUNCH_FAILED" });
    await journal.releaseAll();
    await withMachine(async (machine) => void (await snapshots?.remove(machine, volume, "clean")), {}, "clean");
    expect(await readdir(volume.path)).toEqual(["disk.layer"]);
  });

  test.skipIf(!isRoot)("without room for a snapshot says so, and is as it was when it cannot be put back", async () => {
    const { snapshots } = backend;
    const path = join(root, "small");
    await mkdir(path);
    const options = `size=64k,mode=700,uid=${UID},gid=${UID}`;
    await mount("small", { target: path, type: "tmpfs", options, flags: 0 });
    const volume = { ...request.volume, path };
    try {
      const machine = await backend.launch({ ...request, volume });
      await snapshots?.save(machine, volume, "first");
      await writeFile(join(path, "filler"), Buffer.alloc(MIB)).catch(() => undefined);
      await expect(snapshots?.save(machine, volume, "second")).rejects.toMatchObject({ code: "HOST_FULL" });
      expect((await snapshots?.list(machine, volume))?.map(({ tag }) => tag)).toEqual(["first"]);
      await expect(snapshots?.restore?.(machine, volume, "first")).rejects.toMatchObject({ code: "MONITOR_ERROR" });
      await rm(join(path, "filler"));
      await snapshots?.restore?.(machine, volume, "first");
      expect(await isAlive(machine.identity)).toBe(true);
    } finally {
      await journal.releaseAll();
      await unmount(path, { detach: true });
    }
  });

  test("that answers nothing any more is ended within the budget of its stop and a little more", async () => {
    await withMachine(async (machine) => {
      process.kill(machine.visiblePid ?? 0, "SIGSTOP");
      const began = performance.now();
      await machine.stop(1000);
      expect(performance.now() - began).toBeLessThan(8000);
      expect(await isAlive(machine.identity)).toBe(false);
    });
  });

  test("does what several ask at once, files or not, each for itself", async () => {
    const { snapshots, pause, resources: limits } = backend;
    const { volume } = request;
    await withMachine(async (machine) => {
      await snapshots?.save(machine, volume, "first");
      for (let round = 0; round < 5; round += 1) {
        await Promise.all([
          pause?.pause(machine),
          snapshots?.save(machine, volume, `round-${round}`),
          limits?.limit(machine, { diskOps: 100 }),
          snapshots?.restore?.(machine, volume, "first"),
          pause?.resume(machine),
        ]);
      }
      for (const { tag } of (await snapshots?.list(machine, volume)) ?? [])
        await snapshots?.remove(machine, volume, tag);
    });
  });

  test("is ended by its rows alone, and leaves nothing on the host", async () => {
    const machine = await backend.launch(request);
    await machine.detach();
    await journal.releaseAll();
    expect(await isAlive(machine.identity)).toBe(false);
    expect(await mounts()).toEqual([]);
    await journal.releaseAll();
    if (isRoot) expect(await backend.uidIsClean?.(UID)).toBe(true);
  });

  test("that cannot be made says why, and nothing is left but its rows", async () => {
    const garbage = join(root, "garbage");
    await writeFile(garbage, "x".repeat(10_000));
    const refused = await backend
      .launch({ ...request, spec: spec({ kernel: garbage }) })
      .catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: "LAUNCH_FAILED", message: expect.stringContaining("kernel") });
    await journal.releaseAll();
    expect(await mounts()).toEqual([]);
    expect(await readdir(request.socketDir)).toEqual([]);
  });

  test("one at a time is connected to its serial console, and types", async () => {
    await withMachine(
      async ({ console }) => {
        await says("hi\n");
        const first = await console?.attach();
        await expect(console?.attach()).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
        await first?.write(Buffer.from("typed"));
        let heard = "";
        while (!heard.endsWith("typed")) heard += Buffer.from((await first?.read()) ?? "over").toString();
        first?.close();
        expect(await first?.read()).toBeNull();
        (await console?.attach())?.close();
      },
      { kernel_args: "echo" },
    );
  });

  test("has other limits of its disk while it runs, and those of its group", async () => {
    await withMachine(async (machine) => {
      await backend.resources?.limit(machine, { diskMbit: 80, diskOps: 100 });
      await backend.resources?.limit(machine, { diskMbit: 0, diskOps: 0 });
      if (isRoot) await backend.resources?.limit(machine, { pidsMax: 100 });
      expect((await backend.resources?.use(machine))?.pidsMax ?? 100).toBe(100);
    });
  });
});

/** Whether a tap device can be made here. */
const hasTap = hasKvm && isRoot && existsSync("/dev/net/tun") && Bun.which("ip") !== null;

describe.skipIf(!hasTap)("a machine with a network", () => {
  const tap = `ft${process.pid}`;
  const ip = (...words: string[]): void => void expect(Bun.spawnSync(["ip", ...words]).exitCode).toBe(0);
  const isUsed = async (): Promise<boolean> => (await readFile(`/sys/class/net/${tap}/carrier`, "utf8")) === "1\n";
  const mac = "02:00:00:00:00:01";
  const prepared: SandboxNetwork = {
    mode: "tap",
    hostInterface: tap,
    hostInterfaceIndex: 1,
    hook: "bridged",
    namespace: null,
    tap,
    mac,
    guestAddress: null,
    innerAddress: null,
    gateway: null,
    prefixLength: null,
    leaseFile: null,
  };
  const planned = async (network: JsonObject, isolation: string) => {
    const { image = "", kernel = "" } = request.spec;
    return await backend.plan({ image, kernel, kernel_args: "idle", memory_mib: MEMORY_MIB, network, isolation });
  };

  test.each([
    [1, [], "process"],
    [2, ["multi_queue"], "process"],
    [1, [], "thread"],
    [2, ["multi_queue"], "thread"],
  ] as const)(
    "has the device of the host, with %d queues %j, for as long as it lives: %s",
    async (queues, flags, isolation) => {
      ip("tuntap", "add", tap, "mode", "tap", ...flags);
      try {
        ip("link", "set", tap, "up");
        const { spec: changes, network } = await planned({ mode: "tap", tap, mac, queues }, isolation);
        expect(network).toMatchObject({ mode: "tap", guest: "machine", netns: false, tap, mac, queues });
        await withMachine(async () => expect(await isUsed()).toBe(true), changes, undefined, prepared);
        expect(await isUsed()).toBe(false);
      } finally {
        ip("link", "del", tap);
      }
    },
  );

  test("does not start with a device that is not there", async () => {
    const { spec: changes } = await planned({ mode: "tap", tap }, "process");
    await expect(withMachine(async () => undefined, changes, undefined, prepared)).rejects.toMatchObject({
      code: "LAUNCH_FAILED",
      message: expect.stringContaining(tap),
    });
    expect(Bun.spawnSync(["ip", "link", "show", tap]).exitCode).not.toBe(0);
    await journal.releaseAll();
  });
});

describe.skipIf(!hasKvm)("a machine on threads of the agent", () => {
  const thread = { isolation: "thread" };

  test("says so, has no user of its own, and asks for no lease", async () => {
    const { image, kernel } = request.spec;
    const plan = await backend.plan({ image: image as string, kernel: kernel as string, isolation: "thread" });
    expect(plan).toMatchObject({ isolation: "thread", leases: [], notes: [expect.stringContaining("no jail")] });
    await withMachine(async (machine) => {
      await says("hi\n");
      expect([machine.identity.pid, machine.visiblePid]).toEqual([process.pid, process.pid]);
      expect(await mounts()).toEqual([]);
      await expect(backend.resources?.use(machine)).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
      await expect(backend.resources?.memory(machine)).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
    }, thread);
    expect(await readFile(`/proc/self/maps`, "latin1")).not.toMatch(/rw-s .*\/ram/);
  });

  test("is frozen, goes on, has snapshots, and goes on from one", async () => {
    const { snapshots, pause } = backend;
    const { volume } = request;
    await withMachine(async (machine) => {
      await pause?.pause(machine);
      await pause?.resume(machine);
      await snapshots?.save(machine, volume, "here");
      await snapshots?.restore?.(machine, volume, "here");
    }, thread);
    await withMachine(
      async (machine) => {
        await pause?.pause(machine);
        await pause?.resume(machine);
        await snapshots?.remove(machine, volume, "here");
      },
      thread,
      "here",
    );
  });

  test.each([
    ["off", "the guest powered off"],
    ["reset", "the guest asked for a reset, which ends its machine"],
    ["crash", "the guest crashed"],
  ])("whose guest ends with %s has ended, and says so", async (kernel_args, reason) => {
    const machine = await backend.launch({ ...request, spec: spec({ ...thread, kernel_args }) });
    try {
      expect((await within(machine.ended))?.reason).toBe(reason);
    } finally {
      await journal.releaseAll();
    }
  });

  test("stops when it is told to, and its agent goes on", async () => {
    await withMachine(async (machine) => {
      await machine.stop(0);
      expect((await machine.ended).reason).toBe("stopped");
      await expect(machine.channel()).rejects.toMatchObject({ code: "SANDBOX_GONE" });
    }, thread);
  });

  test("ends with its agent and is not found again", async () => {
    await withMachine(async (machine) => {
      await machine.detach();
      expect(await backend.adopt?.({ ...request, spec: spec(thread), identity: machine.identity })).toBeNull();
      expect(await readdir(request.socketDir)).toEqual([]);
    }, thread);
  });

  test("is ended by its rows alone, and leaves nothing", async () => {
    await backend.launch({ ...request, spec: spec(thread) });
    await journal.releaseAll();
    expect(await mounts()).toEqual([]);
    expect(await readdir(request.socketDir)).toEqual([]);
    await journal.releaseAll();
  });

  test("that cannot be made says why", async () => {
    const refused = backend.launch({ ...request, spec: spec({ ...thread, kernel: join(root, "none") }) });
    await expect(refused).rejects.toMatchObject({ code: "LAUNCH_FAILED", message: expect.stringContaining("kernel") });
    await journal.releaseAll();
    expect(await mounts()).toEqual([]);
    expect(await readdir(request.socketDir)).toEqual([]);
  });
});
