// A real QEMU without a guest: a blank disk that nothing boots from. What the agent can say and do about the machine itself,
// with the rights that it has in production.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { chmod, chown, mkdir, mkdtemp, readFile, rm, stat, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createGuestConnector } from "../../src/guest/connector.ts";
import type { Backend, Instance, LaunchRequest } from "../../src/contracts/backend.ts";
import { ConformanceJournal } from "../../src/conformance/journal.ts";
import { hostFacts, silentLog } from "../../src/registry/testing.ts";
import { probe } from "./capabilities.ts";
import { LOG_MAX_BYTES, trimLog } from "../host/serial-console.ts";
import { createDriver } from "./driver.ts";
import { options as optionsSchema } from "./options.ts";

/** Left there by `./run build`. */
const guestAgent = join(import.meta.dir, "../../dist/native/fluxvm-guest-agent");
const isRoot = process.getuid?.() === 0;
const UID = 1_999_999_003;
const MIB = 1024 * 1024;

const options = optionsSchema.parse({ accel: "tcg" });
let root: string;
let backend: Backend;
let journal: ConformanceJournal;

let request: LaunchRequest;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "qemu-"));
  await chmod(root, 0o711);
  const host = { ...hostFacts(root, guestAgent), instancesDir: join(root, "instances"), runDir: root };
  const report = await probe(host, options);
  expect(report.usable).toBe(true);
  const guest = createGuestConnector();
  backend = await createDriver({ options, host, report, log: silentLog, guest });
  journal = new ConformanceJournal(backend.releases);
  const image = join(root, "image.raw");
  await writeFile(image, "", { mode: 0o600 });
  await truncate(image, 8 * MIB);
  const plan = await backend.plan({ image, memory_mib: 64, machine: "q35" });
  const volume = join(root, "volume");
  for (const path of ["instances", "instances/box", "sockets"]) await mkdir(join(root, path), { mode: 0o711 });
  await mkdir(volume, { mode: 0o700 });
  if (isRoot) await chown(volume, UID, UID);
  request = {
    sandboxId: "box",
    shortName: `qt${process.pid}`.padEnd(12, "a").slice(0, 12),
    spec: plan.spec,
    leases: isRoot ? { machine_uid: UID } : {},
    instanceDir: join(root, "instances/box"),
    socketDir: join(root, "sockets"),
    volume: { name: "box", path: volume, capBytes: plan.volumeCapBytes, hardCap: false },
    token: "t0ken-of-the-test",
    network: null,
    readyTimeoutMs: 60_000,
    resources: journal,
  };
});
afterAll(async () => {
  await journal.releaseAll();
  await rm(root, { recursive: true, force: true });
});

async function withMachine(use: (machine: Instance) => Promise<void>, restore?: string): Promise<void> {
  const machine = await backend.launch(restore === undefined ? request : { ...request, restore });
  try {
    await use(machine);
  } finally {
    await machine.stop(0).catch(() => undefined);
    await journal.releaseAll();
  }
}

const status = (pid: number): Promise<string> => readFile(`/proc/${pid}/status`, "latin1");

describe("a machine", () => {
  test("runs with a user of its own, without rights, and its secret is in no argument", async () => {
    await withMachine(async ({ identity: { pid }, visiblePid }) => {
      expect(visiblePid).toBe(pid);
      const facts = await status(pid);
      if (isRoot) expect(facts).toMatch(new RegExp(`^Uid:\\t${UID}\\t${UID}`, "m"));
      expect(facts).toMatch(/^CapEff:\t0+$/m);
      expect(facts).toMatch(/^NoNewPrivs:\t1$/m);
      expect(facts).toMatch(/^Seccomp:\t2$/m);
      const words = `${await readFile(`/proc/${pid}/cmdline`, "latin1")}${await readFile(`/proc/${pid}/environ`, "latin1")}`;
      expect(words).toContain("qemu");
      expect(words).not.toContain(request.token);
    });
  });

  test("is frozen and goes on", async () => {
    await withMachine(async (machine) => {
      await backend.pause?.pause(machine);
      await backend.pause?.resume(machine);
      await backend.pause?.pause(machine);
      await backend.pause?.resume(machine);
    });
  });

  test("has snapshots, running and not, and goes on from one", async () => {
    const { snapshots } = backend;
    await withMachine(async (machine) => {
      const saved = await snapshots?.save(machine, request.volume, "first");
      expect(saved).toMatchObject({ tag: "first" });
      expect(saved?.bytes).toBeGreaterThan(0);
      expect(Math.abs(Date.now() - (saved?.takenAtUnixMs ?? 0))).toBeLessThan(60_000);
      await expect(snapshots?.save(machine, request.volume, "first")).rejects.toMatchObject({
        code: "SNAPSHOT_EXISTS",
      });
      await snapshots?.save(machine, request.volume, "second");
      expect((await snapshots?.list(machine, request.volume))?.map(({ tag }) => tag)).toEqual(["first", "second"]);
    });
    expect((await snapshots?.list(null, request.volume))?.map(({ tag }) => tag)).toEqual(["first", "second"]);
    await withMachine(async (machine) => {
      expect((await snapshots?.list(machine, request.volume))?.map(({ tag }) => tag)).toEqual(["first", "second"]);
      await snapshots?.remove(machine, request.volume, "first");
      const again = snapshots?.remove(machine, request.volume, "first");
      await expect(again).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    }, "first");
    await expect(backend.launch({ ...request, restore: "nowhere" })).rejects.toMatchObject({
      code: "SNAPSHOT_NOT_FOUND",
    });
    await journal.releaseAll();
    await snapshots?.remove(null, request.volume, "second");
    expect(await snapshots?.list(null, request.volume)).toEqual([]);
    await expect(snapshots?.remove(null, request.volume, "second")).rejects.toMatchObject({
      code: "SNAPSHOT_NOT_FOUND",
    });
  });

  test("outlives its agent and is found again", async () => {
    await withMachine(async (machine) => {
      const { identity } = machine;
      await machine.detach();
      const adopted = await backend.adopt?.({ ...request, identity });
      expect(adopted?.identity).toEqual(identity);
      await adopted?.stop(0);
      expect((await adopted?.ended)?.reason).toBe("stopped");
      expect(await backend.adopt?.({ ...request, identity })).toBeNull();
    });
  });

  test("that listens to nobody, as while it writes its memory, is found again all the same", async () => {
    await withMachine(async (machine) => {
      const { identity } = machine;
      await machine.detach();
      process.kill(identity.pid, "SIGSTOP");
      const adopted = await Promise.race([backend.adopt?.({ ...request, identity }), Bun.sleep(2000)]);
      if (!adopted) throw new Error("it was not adopted in time");
      try {
        const saved = backend.snapshots?.save(adopted, request.volume, "late");
        await Bun.sleep(300);
        process.kill(identity.pid, "SIGCONT");
        expect((await saved)?.tag).toBe("late");
        await backend.snapshots?.remove(adopted, request.volume, "late");
      } finally {
        process.kill(identity.pid, "SIGCONT");
        await adopted.stop(0);
      }
    });
  });

  test("that is killed has ended at once, and says so", async () => {
    await withMachine(async (machine) => {
      process.kill(machine.identity.pid, "SIGKILL");
      const end = await Promise.race([machine.ended, Bun.sleep(2000).then(() => null)]);
      expect(end?.reason).toContain("killed");
      await expect(machine.channel()).rejects.toMatchObject({ code: "SANDBOX_GONE" });
    });
  });

  test("is ended by its journal row alone", async () => {
    const machine = await backend.launch(request);
    await machine.detach();
    await journal.releaseAll();
    await expect(status(machine.identity.pid)).rejects.toThrow(/ENOENT/);
    await journal.releaseAll();
  });

  test("that QEMU refuses is told, with what QEMU said", async () => {
    const spec = { ...request.spec, memory_mib: 1 << 30 };
    const refused = await backend.launch({ ...request, spec }).catch((error: unknown) => error);
    expect(refused).toMatchObject({ code: "LAUNCH_FAILED" });
    await journal.releaseAll();
  });

  test("one at a time is connected to its serial console", async () => {
    await withMachine(async ({ console }) => {
      const first = await console?.attach();
      await expect(console?.attach()).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
      await first?.write(new Uint8Array([1, 2, 3]));
      first?.close();
      expect(await first?.read()).toBeNull();
      (await console?.attach())?.close();
    });
  });
});

describe("a console log", () => {
  test("beyond its bound is moved aside, and nothing is followed", async () => {
    const log = join(root, "console.log");
    await writeFile(log, Buffer.alloc(LOG_MAX_BYTES + 10, "x"));
    await trimLog(log);
    expect((await stat(log)).size).toBe(0);
    expect((await stat(`${log}.1`)).size).toBe(LOG_MAX_BYTES);

    const victim = join(root, "victim");
    await writeFile(victim, Buffer.alloc(LOG_MAX_BYTES + 10, "y"));
    await rm(log);
    await symlink(victim, log);
    await trimLog(log);
    expect((await stat(victim)).size).toBe(LOG_MAX_BYTES + 10);
  });
});
