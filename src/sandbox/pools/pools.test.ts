// Warm pools on a host in memory: filling, claiming, resizing, who sees them, and what a crash or a failure leaves.
import { describe, expect, test } from "bun:test";
import { AgentError } from "../../errors/agent-error.ts";
import type { SandboxCore } from "../core.ts";
import { CRASH_POINTS, type CrashHook, type CrashPoint } from "../crash-points.ts";
import type { Caller } from "../operations.ts";
import { admin, NOTHING_HELD, World } from "../testing/world.ts";

const template = { backend: "fake", backendRequest: { memory_mib: 128 }, labels: { kind: "web" } };
const blue: Caller = { ...admin, tenant: "blue", token: "blue-token" };

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(1);
  }
}

const isFull = (core: SandboxCore, size: number, name = "web") => {
  const { ready, members } = core.pools.pool(admin, name);
  return ready === size && members.length === size;
};

async function filled(size = 2, caller: Caller = admin) {
  const world = await World.create();
  const core = world.core();
  await core.pools.createPool(caller, { name: "web", size, template });
  await until(() => isFull(core, size));
  return { world, core, [Symbol.asyncDispose]: () => world[Symbol.asyncDispose]() };
}

const paused = (world: World): boolean[] => [...world.host.processes.values()].map((process) => process.paused);

describe("a pool", () => {
  test("fills in the background with members that wait frozen and that nobody sees", async () => {
    await using vm = await filled();
    const pool = vm.core.pools.pool(admin, "web");
    expect(pool).toMatchObject({ name: "web", size: 2, ready: 2, claimedTotal: 0, error: null, tenant: null });
    expect(pool.template).toEqual({ backend: "fake", memory_mib: 128, labels: { kind: "web" } });
    expect(paused(vm.world)).toEqual([true, true]);
    const [id = ""] = pool.members;
    expect(vm.core.operations.list(admin, {})).toEqual([]);
    expect(vm.core.operations.visible(admin, id)).toBe(false);
    const { operations } = vm.core;
    await expect(operations.process(admin, id, { command: "true" })).rejects.toMatchObject({
      code: "SANDBOX_NOT_FOUND",
    });
    await expect(operations.remove(admin, id)).rejects.toMatchObject({ code: "SANDBOX_NOT_FOUND" });
    expect(operations.quota(admin)).toMatchObject({ vms: 2 });
  });

  test.each([
    [{ name: "a/b" }, "BAD_REQUEST"],
    [{ name: "" }, "BAD_REQUEST"],
    [{ name: ".." }, "BAD_REQUEST"],
    [{ size: 0 }, "BAD_REQUEST"],
    [{ size: 1.5 }, "BAD_REQUEST"],
    [{ size: 257 }, "BAD_REQUEST"],
    [{ template: { ...template, backend: "none" } }, "CAPABILITY_MISSING"],
    [{ template: { ...template, labels: { "a,b": "" } } }, "BAD_REQUEST"],
  ])("%j is refused", async (fields, code) => {
    await using world = await World.create();
    const core = world.core();
    const request = { name: "web", size: 1, template, ...fields };
    await expect(core.pools.createPool(admin, request)).rejects.toMatchObject({ code });
    expect(core.pools.pools(admin)).toEqual([]);
  });

  test("has a name of its own, and a template that its backend takes", async () => {
    await using vm = await filled(1);
    const again = vm.core.pools.createPool(blue, { name: "web", size: 1, template });
    await expect(again).rejects.toMatchObject({ code: "POOL_EXISTS" });
    vm.world.host.faults.add("plan");
    const refused = vm.core.pools.createPool(admin, { name: "other", size: 1, template });
    await expect(refused).rejects.toMatchObject({ code: "CONFINEMENT_UNAVAILABLE" });
  });

  test("is not there when it cannot be written down", async () => {
    await using world = await World.create();
    const core = world.core();
    world.state.refuse = () => true;
    await expect(core.pools.createPool(admin, { name: "web", size: 1, template })).rejects.toBeInstanceOf(AgentError);
    expect(core.pools.pools(admin)).toEqual([]);
  });

  test("belongs to a tenant", async () => {
    await using vm = await filled(1, blue);
    const green = { ...admin, tenant: "green" };
    for (const call of [
      () => vm.core.pools.claim(green, "web", {}),
      () => vm.core.pools.resizePool(green, "web", 2),
      () => vm.core.pools.removePool(green, "web"),
      async () => vm.core.pools.pool(green, "web"),
    ]) {
      await expect(call()).rejects.toMatchObject({ code: "POOL_NOT_FOUND" });
    }
    expect(vm.core.pools.pools(green)).toEqual([]);
    const foreign = { name: "x", size: 1, template: { ...template, tenant: "blue" } };
    await expect(vm.core.pools.createPool(green, foreign)).rejects.toMatchObject({ code: "TENANT_REFUSED" });
    const { request, id } = await vm.core.pools.claim(blue, "web", {});
    expect((request as { tenant: string }).tenant).toBe("blue");
    expect(vm.core.operations.visible(green, id)).toBe(false);
    expect(vm.core.operations.visible(blue, id)).toBe(true);
  });
});

describe("a claim", () => {
  test("takes the oldest, which is a sandbox like any other from then on, and another is made", async () => {
    await using vm = await filled();
    const [oldest = ""] = vm.core.pools.pool(admin, "web").members;
    vm.world.nowUnixMs += 60_000;
    const record = await vm.core.pools.claim(admin, "web", { name: "mine", ttlSeconds: 10, podUid: "pod-1" });
    expect(record).toMatchObject({ id: oldest, name: "mine", state: "ready", labels: { kind: "web" } });
    const told = [...vm.world.host.processes.values()].flatMap(({ channel }) => channel.told);
    expect(told).toEqual([{ unixMs: vm.world.nowUnixMs }]);
    expect(record.created_at).toBe(new Date(vm.world.nowUnixMs).toISOString());
    expect(record.expires_at).toBe(new Date(vm.world.nowUnixMs + 10_000).toISOString());
    expect((record.request as { pod_uid: string }).pod_uid).toBe("pod-1");
    expect((await vm.core.operations.process(admin, oldest, { command: "true" })).exitCode).toBe(0);
    await until(() => isFull(vm.core, 2));
    expect(vm.core.pools.pool(admin, "web").claimedTotal).toBe(1);
    expect(vm.core.operations.list(admin, {}).map(({ id }) => id)).toEqual([oldest]);
    await vm.core.operations.remove(admin, oldest);
  });

  test("of all at once gives each to one, and says when none is left", async () => {
    await using vm = await filled(3);
    vm.world.host.launchGate = new Promise(() => undefined);
    const claims = await Promise.allSettled([1, 2, 3, 4].map(() => vm.core.pools.claim(admin, "web", {})));
    const taken = claims.flatMap((claim) => (claim.status === "fulfilled" ? [claim.value.id] : []));
    expect(new Set(taken).size).toBe(3);
    const refused = claims.find((claim) => claim.status === "rejected");
    expect((refused as PromiseRejectedResult).reason.code).toBe("POOL_EMPTY");
    expect(vm.core.pools.pool(admin, "web").claimedTotal).toBe(3);
  });

  test.each([
    [{ podUid: "a b" }],
    [{ podUid: "" }],
    [{ podUid: "x".repeat(129) }],
    [{ name: "" }],
    [{ ttlSeconds: 0 }],
  ])("%j is refused before anybody is touched", async (request) => {
    await using vm = await filled(1);
    await expect(vm.core.pools.claim(admin, "web", request)).rejects.toMatchObject({ code: "BAD_REQUEST" });
    expect(paused(vm.world)).toEqual([true]);
  });

  test("passes over a member that does not come to life", async () => {
    await using vm = await filled(2);
    vm.world.host.faults.add("resume");
    await expect(vm.core.pools.claim(admin, "web", {})).rejects.toMatchObject({ code: "POOL_EMPTY" });
    vm.world.host.faults.delete("resume");
    await until(() => isFull(vm.core, 2));
    expect((await vm.core.pools.claim(admin, "web", {})).state).toBe("ready");
  });

  test("that cannot be written down leaves the member in its pool", async () => {
    await using vm = await filled(1);
    vm.world.state.refuse = (changes) => changes.some((change) => "put" in change && change.put === "pool");
    await expect(vm.core.pools.claim(admin, "web", {})).rejects.toMatchObject({ code: "STATE_UNAVAILABLE" });
    await until(() => isFull(vm.core, 1));
    expect(vm.core.pools.pool(admin, "web").claimedTotal).toBe(0);
    expect(vm.core.operations.list(admin, {})).toEqual([]);
  });
});

describe("the size", () => {
  test("grows in the background and shrinks at once", async () => {
    await using vm = await filled(1);
    expect((await vm.core.pools.resizePool(admin, "web", 3)).size).toBe(3);
    await until(() => isFull(vm.core, 3));
    const shrunk = await vm.core.pools.resizePool(admin, "web", 1);
    expect([shrunk.ready, shrunk.members.length, vm.world.host.processes.size]).toEqual([1, 1, 1]);
    await expect(vm.core.pools.resizePool(admin, "web", 0)).rejects.toMatchObject({ code: "BAD_REQUEST" });
  });

  test("that shrinks while a member is made ends without it", async () => {
    await using vm = await filled(1);
    const gate = Promise.withResolvers<void>();
    vm.world.host.launchGate = gate.promise;
    await vm.core.pools.resizePool(admin, "web", 3);
    await vm.core.pools.resizePool(admin, "web", 1);
    gate.resolve();
    await until(() => vm.world.host.processes.size === 1 && isFull(vm.core, 1));
  });
});

describe("a removed pool", () => {
  test("leaves nothing but who was claimed, also of members that were being made", async () => {
    await using vm = await filled(1);
    const { id } = await vm.core.pools.claim(admin, "web", {});
    await until(() => isFull(vm.core, 1));
    const gate = Promise.withResolvers<void>();
    vm.world.host.launchGate = gate.promise;
    await vm.core.pools.resizePool(admin, "web", 2);
    await vm.core.pools.removePool(admin, "web");
    expect(vm.core.pools.pools(admin)).toEqual([]);
    gate.resolve();
    await until(() => vm.world.host.processes.size === 1);
    await vm.core.operations.remove(admin, id);
    await until(() => vm.world.host.processes.size === 0);
    expect(Object.keys(vm.world.state.tables.pools)).toEqual([]);
  });
});

describe("members", () => {
  test("that end are replaced, and those that cannot be made are tried again later", async () => {
    await using vm = await filled(1);
    vm.world.host.faults.add("launch");
    const [shortName = ""] = vm.world.host.processes.keys();
    vm.world.host.kill(shortName, "killed");
    vm.core.startKeepers();
    await until(() => vm.core.pools.pool(admin, "web").error !== null);
    expect(vm.core.pools.pool(admin, "web")).toMatchObject({ ready: 0, members: [] });
    const tried = vm.world.host.trace.length;
    await Bun.sleep(30);
    expect(vm.world.host.trace.length).toBe(tried);
    vm.world.host.faults.delete("launch");
    vm.world.nowUnixMs += 5000;
    await until(() => isFull(vm.core, 1));
    expect(vm.core.pools.pool(admin, "web").error).toBeNull();
    await vm.core.shutdown(100);
  });

  test("outlive the agent", async () => {
    await using vm = await filled(2);
    const { members } = vm.core.pools.pool(admin, "web");
    await vm.core.shutdown(100);
    const next = vm.world.core();
    await next.reconcile();
    expect(next.pools.pool(admin, "web")).toMatchObject({ members, ready: 2 });
    expect((await next.pools.claim(admin, "web", {})).id).toBe(members[0]!);
  });
});

describe("a crash", () => {
  const scenarios: readonly [string, (core: SandboxCore) => Promise<unknown>][] = [
    ["while it fills", (core) => core.pools.resizePool(admin, "web", 2).then(() => until(() => isFull(core, 2)))],
    ["in a claim", (core) => core.pools.claim(admin, "web", { name: "mine" }).then(() => until(() => isFull(core, 1)))],
    ["in its removal", (core) => core.pools.removePool(admin, "web")],
  ];

  test.each(scenarios)("%s leaves a pool that fills, or none, and nothing lost", async (_, act) => {
    let crashes = 0;
    for (const point of CRASH_POINTS) {
      await using vm = await filled(1);
      const dying = vm.world.core({ crashPoint: dyingAt(point, vm.world) });
      await dying.reconcile();
      const outcome = await Promise.race([act(dying).then(() => "done"), died(vm.world)]);
      if (outcome === "done") continue;
      crashes += 1;
      const next = vm.world.core();
      await next.reconcile();
      next.startKeepers();
      const [pool] = next.pools.pools(admin);
      if (pool !== undefined) await until(() => isFull(next, pool.size));
      for (const { id } of next.operations.list(admin, {})) await next.operations.remove(admin, id);
      if (pool !== undefined) await next.pools.removePool(admin, "web");
      await until(() => vm.world.host.processes.size === 0);
      await next.shutdown(1000);
      expect({ point, ...(await vm.world.holdings()) }).toEqual({ point, ...NOTHING_HELD });
    }
    expect(crashes).toBeGreaterThan(3);
  });

  const dead = new WeakMap<World, PromiseWithResolvers<string>>();
  const died = (world: World) => (dead.get(world) ?? Promise.withResolvers<string>()).promise;

  function dyingAt(wanted: CrashPoint, world: World): CrashHook {
    const death = Promise.withResolvers<string>();
    dead.set(world, death);
    return async (point) => {
      if (point !== wanted) return;
      world.killAgents();
      death.resolve("died");
      await new Promise(() => undefined);
    };
  }
});
