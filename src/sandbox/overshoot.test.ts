import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import type { SandboxCore } from "./core.ts";
import { admin, World } from "./testing/world.ts";

const MIB = 1 << 20;

async function setUp(world: World): Promise<SandboxCore> {
  const core = world.core();
  await core.reconcile();
  core.startKeepers();
  await core.operations.create(admin, { backend: "fake", backendRequest: {}, id: "one" });
  return core;
}

async function until(holds: () => boolean): Promise<void> {
  for (let i = 0; i < 500 && !holds(); i += 1) await Bun.sleep(2);
  expect(holds()).toBe(true);
}

describe("a workspace over its bound", () => {
  test("stops its sandbox with the reason, and nobody else's", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    await operations.create(admin, { backend: "fake", backendRequest: {}, id: "two" });
    world.host.reportOvershoot("one", 3 * MIB);
    world.host.reportOvershoot("one", 4 * MIB);
    await until(() => operations.get(admin, "one").state === "stopped");
    expect(operations.get(admin, "one").error).toBe("the workspace holds 3 MiB; its limit is 1 MiB");
    expect(operations.get(admin, "two").state).toBe("ready");
    const refused = operations.process(admin, "one", { command: "exit 0" });
    await expect(refused).rejects.toMatchObject({
      code: "INVALID_STATE",
      message: expect.stringContaining("holds 3 MiB"),
    });
    expect(world.host.processes.size).toBe(1);
    expect(world.host.volumes.has("one")).toBe(true);
  });

  test("started again it may be emptied, but not grow", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    world.host.volumes.get("one")?.set("/big", { content: new Uint8Array(3 * MIB), mode: 0o644 });
    world.host.reportOvershoot("one", 3 * MIB);
    await until(() => operations.get(admin, "one").state === "stopped");
    await operations.start(admin, "one");
    expect(operations.get(admin, "one").error).toBeNull();
    world.host.reportOvershoot("one", 3 * MIB);
    world.host.reportOvershoot("one", 2 * MIB);
    await Bun.sleep(20);
    expect(operations.get(admin, "one").state).toBe("ready");
    world.host.reportOvershoot("one", 3 * MIB + 1);
    await until(() => operations.get(admin, "one").state === "stopped");
    // No stop may not raise what is tolerated.
    await operations.start(admin, "one");
    world.host.reportOvershoot("one", 3 * MIB + 1);
    await until(() => operations.get(admin, "one").state === "stopped");
  });

  test("with too many entries to add up is always stopped", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    for (let round = 0; round < 2; round += 1) {
      world.host.reportOvershoot("one", null);
      await until(() => operations.get(admin, "one").state === "stopped");
      expect(operations.get(admin, "one").error).toContain("too many entries");
      await operations.start(admin, "one");
    }
  });

  test("of a dry-run ends the dry-run only", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    const running = operations.dryRun(admin, "one", { command: "sleep 200" });
    const caught = running.catch((error: unknown) => error);
    const clone = (): string | undefined => [...world.host.volumes.keys()].find((name) => name.startsWith("one."));
    await until(() => clone() !== undefined && world.host.processes.size === 2);
    world.host.reportOvershoot(clone() ?? "", 2 * MIB);
    expect(await caught).toMatchObject({
      code: "WORKSPACE_FULL",
      message: "the copy of the dry-run holds 2 MiB; its limit is 1 MiB",
    });
    expect(clone()).toBeUndefined();
    expect(operations.get(admin, "one").state).toBe("ready");
  });

  test("a stop that failed is tried again at the next report", async () => {
    await using world = await World.create();
    const store = world.state.handle({ dead: false });
    let refusals = 1;
    const core = world.core({
      store: {
        ...store,
        commit: async (changes) => {
          const stops = JSON.stringify(changes).includes("its limit is");
          if (stops && refusals > 0) {
            refusals -= 1;
            throw new AgentError("STATE_UNAVAILABLE");
          }
          await store.commit(changes);
        },
      },
    });
    await core.reconcile();
    core.startKeepers();
    await core.operations.create(admin, { backend: "fake", backendRequest: {}, id: "one" });
    world.host.reportOvershoot("one", 3 * MIB);
    await until(() => refusals === 0);
    await Bun.sleep(5);
    expect(core.operations.get(admin, "one").state).toBe("ready");
    world.host.reportOvershoot("one", 3 * MIB);
    await until(() => core.operations.get(admin, "one").state === "stopped");
  });

  test("the reason outlives a crash in the middle of the stop", async () => {
    await using world = await World.create();
    const core = world.core({
      crashPoint: (point) => (point === "stop.ended" ? new Promise<void>(() => {}) : undefined),
    });
    await core.reconcile();
    core.startKeepers();
    await core.operations.create(admin, { backend: "fake", backendRequest: {}, id: "one" });
    world.host.reportOvershoot("one", 3 * MIB);
    await until(() => core.operations.get(admin, "one").state === "stopping");
    await Bun.sleep(10);
    const next = world.core();
    await next.reconcile();
    expect(next.operations.get(admin, "one")).toMatchObject({
      state: "stopped",
      error: expect.stringContaining("holds 3 MiB"),
    });
  });

  test("nobody is told after a shutdown", async () => {
    await using world = await World.create();
    const core = await setUp(world);
    expect(world.host.overshootListeners.size).toBe(1);
    await core.shutdown(1_000);
    expect(world.host.overshootListeners.size).toBe(0);
  });
});
