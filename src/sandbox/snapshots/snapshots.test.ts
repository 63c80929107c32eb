// Snapshots, restoring and dry-runs in the sandbox itself, on a host in memory: what callers hear, what is put back, and
// what is left after each failure and each crash.
import { describe, expect, spyOn, test } from "bun:test";
import type { Snapshot } from "../../contracts/backend.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { SandboxCore } from "../core.ts";
import type { CrashPoint } from "../crash-points.ts";
import type { IdempotentRequest } from "../operations.ts";
import { FakeChannel, type FakeFile, type Files } from "../testing/fake-guest.ts";
import { admin, NOTHING_HELD, World } from "../testing/world.ts";

const file = (content: string): FakeFile => ({ content: Buffer.from(content), mode: 0o644 });
const textOf = (files: Files | undefined): Record<string, string> =>
  Object.fromEntries([...(files ?? [])].map(([path, { content }]) => [path, Buffer.from(content).toString()]));

const BEFORE = { "/kept": "kept", "/edited": "old" };

async function machine(restores: "relaunch" | "in-place" = "relaunch") {
  const world = await World.create();
  world.host.restores = restores;
  const core = world.core();
  await core.operations.create(admin, { id: "vm", backend: "fake", backendRequest: {} });
  const files = world.host.volumes.get("vm") as Files;
  for (const [path, content] of Object.entries(BEFORE)) files.set(path, file(content));
  const pid = (): number | undefined => [...world.host.processes.values()][0]?.pid;
  const tags = (): string[] => [...(world.host.snapshots.get("vm")?.keys() ?? [])];
  return { world, core, files, pid, tags, [Symbol.asyncDispose]: () => world[Symbol.asyncDispose]() };
}

const stateOf = (core: SandboxCore) => core.operations.get(admin, "vm");
const dryRun = (core: SandboxCore, command: string) => core.operations.dryRun(admin, "vm", { command, paths: ["/"] });
const CHANGING = "write /edited new;write /added x;rm /kept";

describe("snapshots", () => {
  test("are taken, listed and removed, while the sandbox runs, is paused or stopped", async () => {
    await using vm = await machine();
    const { operations, snapshots } = vm.core;
    await snapshots.takeSnapshot(admin, "vm", "one");
    await operations.pause(admin, "vm");
    await snapshots.takeSnapshot(admin, "vm", "two");
    await operations.resume(admin, "vm");
    await expect(snapshots.takeSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "SNAPSHOT_EXISTS" });
    await operations.stop(admin, "vm");
    expect((await snapshots.snapshots(admin, "vm")).map(({ tag }) => tag)).toEqual(["one", "two"]);
    await snapshots.removeSnapshot(admin, "vm", "one");
    await expect(snapshots.removeSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    await expect(snapshots.takeSnapshot(admin, "vm", "three")).rejects.toMatchObject({ code: "INVALID_STATE" });
  });

  test("with a key are taken once, and leave the reply; a failure leaves the key free", async () => {
    await using vm = await machine();
    const { snapshots } = vm.core;
    const rows = () => vm.world.state.tables.idempotency;
    const keyed = (hash: string): IdempotentRequest<Snapshot> => ({
      hash,
      bodyHash: "b",
      reply: ({ tag }) => ({ status: 200, body: tag }),
    });
    await snapshots.takeSnapshot(admin, "vm", "one", keyed("h"));
    expect(rows().h?.reply).toEqual({ status: 200, body: "one" });
    const again = snapshots.takeSnapshot(admin, "vm", "two", keyed("h"));
    await expect(again).rejects.toMatchObject({ code: "IDEMPOTENCY_IN_FLIGHT" });
    const taken = snapshots.takeSnapshot(admin, "vm", "one", keyed("other"));
    await expect(taken).rejects.toMatchObject({ code: "SNAPSHOT_EXISTS" });
    expect([vm.tags(), Object.keys(rows())]).toEqual([["one"], ["h"]]);
  });

  test.each(["", ".", "..", "a/b", "..\0", "x".repeat(129), "dry-run-00000000"])(
    "the tag %j is refused",
    async (tag) => {
      await using vm = await machine();
      const { snapshots } = vm.core;
      for (const call of [snapshots.takeSnapshot, snapshots.removeSnapshot, snapshots.restoreSnapshot]) {
        await expect(call(admin, "vm", tag)).rejects.toMatchObject({ code: "BAD_REQUEST" });
      }
    },
  );

  test("belong to backends that have them, and to sandboxes that the caller may see", async () => {
    await using world = await World.create();
    const core = world.core();
    await core.operations.create(admin, { id: "vm", backend: "fake", backendRequest: {} });
    await expect(core.snapshots.snapshots(admin, "vm")).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
    const stranger = { ...admin, tenant: "other" };
    await expect(core.snapshots.snapshots(stranger, "vm")).rejects.toMatchObject({ code: "SANDBOX_NOT_FOUND" });
  });
});

describe("restoring", () => {
  test("a stopped sandbox starts from the snapshot", async () => {
    await using vm = await machine();
    const { operations, snapshots } = vm.core;
    await snapshots.takeSnapshot(admin, "vm", "one");
    await operations.process(admin, "vm", { command: CHANGING });
    await expect(snapshots.restoreSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "RESTORE_NEEDS_STOP" });
    await operations.stop(admin, "vm");
    await expect(snapshots.restoreSnapshot(admin, "vm", "none")).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    expect(stateOf(vm.core)).toMatchObject({ state: "stopped", error: null });
    expect(await snapshots.restoreSnapshot(admin, "vm", "one")).toMatchObject({ state: "ready" });
    expect(textOf(vm.files)).toEqual(BEFORE);
    expect(vm.tags()).toEqual(["one"]);
  });

  test("a running sandbox is put back where the backend can, as often as asked, as the same process", async () => {
    await using vm = await machine("in-place");
    const { operations, snapshots } = vm.core;
    const pid = vm.pid();
    await snapshots.takeSnapshot(admin, "vm", "one");
    for (let round = 0; round < 3; round += 1) {
      await operations.process(admin, "vm", { command: CHANGING });
      await snapshots.restoreSnapshot(admin, "vm", "one");
      expect(textOf(vm.files)).toEqual(BEFORE);
    }
    expect(vm.pid()).toBe(pid);
    await expect(snapshots.restoreSnapshot(admin, "vm", "none")).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    await expect(snapshots.startFromSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "RESTORE_NEEDS_STOP" });
  });
});

describe("a paused sandbox", () => {
  test("is put back in place, and runs afterwards", async () => {
    await using vm = await machine("in-place");
    const { operations, snapshots } = vm.core;
    const pid = vm.pid();
    await snapshots.takeSnapshot(admin, "vm", "one");
    await operations.process(admin, "vm", { command: CHANGING });
    await operations.pause(admin, "vm");
    expect(await snapshots.restoreSnapshot(admin, "vm", "one")).toMatchObject({ state: "ready", paused_at: null });
    expect([textOf(vm.files), vm.pid()]).toEqual([BEFORE, pid]);
    await operations.pause(admin, "vm");
    await expect(snapshots.restoreSnapshot(admin, "vm", "none")).rejects.toMatchObject({ code: "SNAPSHOT_NOT_FOUND" });
    expect(stateOf(vm.core)).toMatchObject({ state: "paused" });
  });

  test("stays paused where it had to be stopped first", async () => {
    await using vm = await machine("relaunch");
    await vm.core.snapshots.takeSnapshot(admin, "vm", "one");
    await vm.core.operations.pause(admin, "vm");
    const refused = vm.core.snapshots.restoreSnapshot(admin, "vm", "one");
    await expect(refused).rejects.toMatchObject({ code: "RESTORE_NEEDS_STOP" });
    expect(stateOf(vm.core)).toMatchObject({ state: "paused" });
  });
});

describe("a guest out of a snapshot", () => {
  const told = (world: World) => [...world.host.processes.values()].flatMap(({ channel }) => channel.told);
  const NEWS = (unixMs: number) => [{ unixMs }, { regenerateMachineId: false, reseedEntropy: true }];

  test.each(["relaunch", "in-place"] as const)("hears the time and fresh random numbers (%s)", async (restores) => {
    await using vm = await machine(restores);
    expect(told(vm.world)).toEqual([]);
    await dryRun(vm.core, CHANGING);
    const unixMs = vm.world.nowUnixMs;
    // Where it is the same process, it stood still before the command, too.
    expect(told(vm.world)).toEqual([...(restores === "in-place" ? [{ unixMs }] : []), ...NEWS(unixMs)]);
  });

  test("hears it at a start, which without a snapshot says nothing", async () => {
    await using vm = await machine();
    const { operations, snapshots } = vm.core;
    await snapshots.takeSnapshot(admin, "vm", "one");
    await operations.stop(admin, "vm");
    await snapshots.restoreSnapshot(admin, "vm", "one");
    expect(told(vm.world)).toEqual(NEWS(vm.world.nowUnixMs));
    await operations.stop(admin, "vm");
    await operations.start(admin, "vm");
    expect(told(vm.world)).toEqual([]);
  });

  test.each(["relaunch", "in-place"] as const)(
    "that cannot do anything with it runs all the same (%s)",
    async (how) => {
      await using vm = await machine(how);
      const { prototype } = FakeChannel;
      using refusing = spyOn(prototype, "resetIdentity").mockRejectedValue(new AgentError("GUEST_ERROR"));
      await dryRun(vm.core, CHANGING);
      expect(refusing).toHaveBeenCalledTimes(1);
      expect(stateOf(vm.core)).toMatchObject({ state: "ready", error: null });
      expect(textOf(vm.files)).toEqual(BEFORE);
    },
  );
});

describe("a guest that stood still", () => {
  const told = (world: World) => [...world.host.processes.values()].flatMap(({ channel }) => channel.told);

  test("hears the time when it was paused, by whatever it is resumed, and when its memory was written", async () => {
    await using vm = await machine();
    const { operations, snapshots } = vm.core;
    const times: { unixMs: number }[] = [];
    const later = () => {
      vm.world.nowUnixMs += 60_000;
      times.push({ unixMs: vm.world.nowUnixMs });
    };
    for (const resume of [() => operations.resume(admin, "vm"), () => operations.ping(admin, "vm")]) {
      await operations.pause(admin, "vm");
      later();
      await resume();
      expect(told(vm.world)).toEqual(times);
    }
    later();
    await snapshots.takeSnapshot(admin, "vm", "one");
    expect(told(vm.world)).toEqual(times);
    await operations.pause(admin, "vm");
    await snapshots.takeSnapshot(admin, "vm", "two");
    expect(told(vm.world)).toEqual(times);
  });

  test("runs on when its clock cannot be set", async () => {
    await using vm = await machine();
    await vm.core.operations.pause(admin, "vm");
    for (const { channel } of vm.world.host.processes.values()) {
      channel.clock.set = () => Promise.reject(new AgentError("GUEST_ERROR"));
    }
    expect(await vm.core.operations.resume(admin, "vm")).toMatchObject({ state: "ready", error: null });
  });
});

describe("a dry-run by snapshot", () => {
  test.each(["relaunch", "in-place"] as const)("tells what changed and puts it back (%s)", async (restores) => {
    await using vm = await machine(restores);
    const pid = vm.pid();
    for (let round = 0; round < 3; round += 1) {
      const reply = await dryRun(vm.core, CHANGING);
      expect(reply).toMatchObject({ revertedVia: "snapshot", exec: { exitCode: 0 } });
      const { added, modified, deleted } = reply.changes;
      expect([added, modified, deleted].map((paths) => paths.map((path) => Buffer.from(path).toString()))).toEqual([
        ["/added"],
        ["/edited"],
        ["/kept"],
      ]);
      expect(textOf(vm.files)).toEqual(BEFORE);
      expect(vm.tags()).toEqual([]);
    }
    expect(vm.pid() === pid).toBe(restores === "in-place");
    expect(stateOf(vm.core)).toMatchObject({ state: "ready", error: null });
    const { resources } = await vm.world.holdings();
    expect(resources.filter((row) => row.includes("snapshot"))).toEqual([]);
    expect(await vm.core.operations.process(admin, "vm", { command: "write /after y" })).toMatchObject({ exitCode: 0 });
  });

  test.each([
    ["fails", "write /added x;exit 3", { exec: { exitCode: 3 } }],
    ["takes too long", "write /added x;timeout", { exec: { timedOut: true } }],
  ])("of a command that %s is put back too", async (_, command, reply) => {
    await using vm = await machine();
    expect(await dryRun(vm.core, command)).toMatchObject(reply);
    expect(textOf(vm.files)).toEqual(BEFORE);
  });

  test("of a command that ends the machine is an error, and the machine is back", async () => {
    await using vm = await machine();
    await expect(dryRun(vm.core, "write /added x;die")).rejects.toMatchObject({ code: "SANDBOX_GONE" });
    expect(textOf(vm.files)).toEqual(BEFORE);
    expect(stateOf(vm.core)).toMatchObject({ state: "ready", error: null });
    expect(vm.tags()).toEqual([]);
  });

  test("needs paths, and a sandbox in which nothing runs", async () => {
    await using vm = await machine();
    const { operations } = vm.core;
    await expect(operations.dryRun(admin, "vm", { command: "x" })).rejects.toMatchObject({ code: "PATHS_REQUIRED" });
    const busy = operations.process(admin, "vm", { command: "sleep 50" });
    await expect(dryRun(vm.core, "x")).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
    await busy;
    const first = dryRun(vm.core, "sleep 50");
    await expect(dryRun(vm.core, "x")).rejects.toMatchObject({ code: "DRY_RUN_BUSY" });
    const { snapshots } = vm.core;
    await expect(snapshots.takeSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "DRY_RUN_BUSY" });
    await expect(snapshots.restoreSnapshot(admin, "vm", "one")).rejects.toMatchObject({ code: "DRY_RUN_BUSY" });
    await first;
  });

  test("keeps out what would be undone with it, and does not begin while files are written", async () => {
    await using vm = await machine();
    const { operations, executions, files } = vm.core;
    const running = dryRun(vm.core, "sleep 100");
    const path = Buffer.from("/mine");
    const others = [
      () => operations.process(admin, "vm", { command: "write /mine x" }),
      () => operations.writeFile(admin, "vm", "mine", Buffer.from("x"), 0o644),
      () => operations.readFile(admin, "vm", "kept"),
      () => operations.baseline(admin, "vm", ["/"]),
      () => executions.startExecution(admin, "vm", { command: "x" }),
      () => files.makeDirectory(admin, "vm", path, 0o755),
    ];
    for (const other of others) await expect(other()).rejects.toMatchObject({ code: "DRY_RUN_BUSY" });
    await operations.ping(admin, "vm");
    expect(await running).toMatchObject({ revertedVia: "snapshot" });
    expect(await operations.process(admin, "vm", { command: "write /mine x" })).toMatchObject({ exitCode: 0 });
    const writing = operations.writeFile(admin, "vm", "mine", Buffer.from("y"), 0o644);
    await expect(dryRun(vm.core, "x")).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
    await writing;
    expect(await dryRun(vm.core, "x")).toMatchObject({ revertedVia: "snapshot" });
  });

  test("whose snapshot cannot be taken changes nothing", async () => {
    await using vm = await machine();
    vm.world.host.faults.add("save");
    await expect(dryRun(vm.core, CHANGING)).rejects.toMatchObject({ code: "MONITOR_ERROR" });
    expect(textOf(vm.files)).toEqual(BEFORE);
    expect(vm.tags()).toEqual([]);
    expect(stateOf(vm.core)).toMatchObject({ state: "ready" });
  });

  test("that cannot be put back says so, and the next start puts it back", async () => {
    await using vm = await machine();
    vm.world.host.faults.add("restore");
    await expect(dryRun(vm.core, CHANGING)).rejects.toMatchObject({ code: "DRY_RUN_NOT_REVERTED" });
    expect(stateOf(vm.core)).toMatchObject({ state: "failed", error: expect.stringContaining("dry-run") });
    expect(vm.tags()).toHaveLength(1);
    await expect(vm.core.operations.start(admin, "vm")).rejects.toThrow();
    vm.world.host.faults.clear();
    await vm.core.operations.start(admin, "vm");
    expect(textOf(vm.files)).toEqual(BEFORE);
    expect(vm.tags()).toEqual([]);
    expect(stateOf(vm.core)).toMatchObject({ state: "ready", error: null });
  });

  test("that a stop interrupts ends first, put back", async () => {
    await using vm = await machine();
    const cut = dryRun(vm.core, "write /added x;sleep 200");
    await Bun.sleep(20);
    const stopped = vm.core.operations.stop(admin, "vm");
    await expect(cut).rejects.toMatchObject({ code: "SANDBOX_GONE" });
    expect(await stopped).toMatchObject({ state: "stopped" });
    expect(textOf(vm.files)).toEqual(BEFORE);
    expect(vm.tags()).toEqual([]);
  });

  test("of a sandbox that is removed meanwhile leaves nothing, nor does one that could not be put back", async () => {
    await using vm = await machine();
    const cut = dryRun(vm.core, "write /added x;sleep 200");
    await Bun.sleep(20);
    await Promise.all([vm.core.operations.remove(admin, "vm"), expect(cut).rejects.toThrow()]);
    const { core } = vm;
    await core.operations.create(admin, { id: "vm", backend: "fake", backendRequest: {} });
    vm.world.host.faults.add("restore");
    await expect(dryRun(core, "x")).rejects.toMatchObject({ code: "DRY_RUN_NOT_REVERTED" });
    await core.operations.remove(admin, "vm");
    expect(await vm.world.holdings()).toMatchObject({ ...NOTHING_HELD, leases: [] });
  });
});

const CRASHES: readonly CrashPoint[] = [
  "ledger.intent",
  "ledger.made",
  "dry-run.saved",
  "dry-run.ran",
  "dry-run.reverting",
  "ledger.releasing",
  "ledger.released",
  "dry-run.reverted",
];

describe("an agent that vanishes", () => {
  for (const point of CRASHES) {
    for (const survives of [true, false]) {
      test(`at ${point} of a dry-run: the sandbox is put back (machine ${survives ? "alive" : "gone"})`, async () => {
        await using vm = await machine();
        const { world } = vm;
        let armed = false;
        const died = Promise.withResolvers<void>();
        const core = world.core({
          crashPoint: async (reached) => {
            if (!armed || reached !== point) return;
            world.killAgents();
            died.resolve();
            await new Promise(() => undefined);
          },
        });
        await core.reconcile();
        armed = true;
        void dryRun(core, CHANGING).catch(() => undefined);
        await died.promise;
        if (!survives) for (const name of [...world.host.processes.keys()]) world.host.kill(name, "killed");

        const next = world.core();
        await next.reconcile();
        if (stateOf(next).state === "failed") await next.operations.start(admin, "vm");
        expect(stateOf(next)).toMatchObject({ state: "ready", error: null });
        expect(textOf(vm.files)).toEqual(BEFORE);
        expect(vm.tags()).toEqual([]);
        await next.operations.remove(admin, "vm");
        expect(await world.holdings()).toMatchObject(NOTHING_HELD);
      });
    }
  }
});
