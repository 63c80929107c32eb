import { describe, expect, test } from "bun:test";
import { mkdir } from "node:fs/promises";
import { join } from "node:path";
import type { Change, Store } from "../state/change.ts";
import { openStore } from "../state/store.ts";
import { silentLog } from "../telemetry/silent-log.ts";
import { admin, UID_FIRST, World } from "./testing/world.ts";

const create = { id: "one", backend: "fake", backendRequest: {} };

async function withOneSandbox(world: World) {
  const core = world.core();
  await core.operations.create(admin, create);
  const shortName = String(world.state.tables.records.one?.body.shortName);
  return { core, shortName };
}

describe("reconcile", () => {
  test("adopts what lives, with its identity, labels and deadline", async () => {
    await using world = await World.create();
    const first = world.core();
    const record = await first.operations.create(admin, { ...create, labels: { a: "1" }, ttlSeconds: 60 });
    const launches = world.host.launches;
    const next = world.core();
    const report = await next.reconcile();
    expect(report.fates.get("adopted")).toEqual(["one"]);
    expect(next.operations.get(admin, "one")).toEqual(record);
    expect(world.host.launches).toBe(launches);
    await next.operations.process(admin, "one", { command: "exit 0" });
    world.host.kill(String(world.state.tables.records.one?.body.shortName), "killed");
    await Bun.sleep(5);
    expect(next.operations.get(admin, "one").state).toBe("failed");
  });

  test("an instance that ended meanwhile is failed, with its last words when it left any", async () => {
    for (const words of [undefined, "out of memory"]) {
      await using world = await World.create();
      const { shortName } = await withOneSandbox(world);
      world.killAgents();
      world.host.kill(shortName, "x");
      if (words !== undefined) world.host.lastWords.set(shortName, words);
      const next = world.core();
      await next.reconcile();
      const record = next.operations.get(admin, "one");
      expect(record.state).toBe("failed");
      expect(String(record.error).endsWith(words ?? "away")).toBe(true);
      expect((await world.holdings()).groups).toEqual([]);
      expect((await next.operations.start(admin, "one")).state).toBe("ready");
    }
  });

  test("another process with the same pid is not taken for the sandbox", async () => {
    await using world = await World.create();
    const { shortName } = await withOneSandbox(world);
    world.killAgents();
    world.host.kill(shortName, "x");
    world.host.spawn(shortName, 1, { name: "one", path: "", capBytes: 0, hardCap: true });
    const next = world.core();
    await next.reconcile();
    expect(next.operations.get(admin, "one").state).toBe("failed");
  });

  test("after a reboot a sandbox is stopped and can be started", async () => {
    await using world = await World.create();
    world.host.bootId = "an earlier boot";
    const { shortName } = await withOneSandbox(world);
    world.killAgents();
    world.host.kill(shortName, "power");
    const next = world.core();
    expect((await next.reconcile()).fates.get("stopped")).toEqual(["one"]);
    expect(next.operations.get(admin, "one")).toMatchObject({ state: "stopped", error: "the host was restarted" });
    expect(await next.operations.start(admin, "one")).toMatchObject({ state: "ready", error: null });
  });

  test("one that cannot be adopted is ended, not left without an owner", async () => {
    await using world = await World.create();
    await withOneSandbox(world);
    world.host.faults.add("adopt");
    const next = world.core();
    await next.reconcile();
    expect(next.operations.get(admin, "one")).toMatchObject({ state: "failed" });
    expect((await world.holdings()).processes).toEqual([]);
  });

  test("what is stuck is kept, reported, and released by a later removal", async () => {
    await using world = await World.create();
    const { shortName } = await withOneSandbox(world);
    world.killAgents();
    world.host.kill(shortName, "x");
    world.host.faults.add("group");
    const next = world.core();
    expect((await next.reconcile()).fates.get("stuck")).toEqual(["one"]);
    expect(String(next.operations.get(admin, "one").error)).toContain("fake-group");
    world.host.faults.clear();
    await next.operations.remove(admin, "one");
    expect((await world.holdings()).groups).toEqual([]);
  });

  test("rows and leases without a record are given back by name", async () => {
    await using world = await World.create();
    const owner = "ghost/1";
    world.host.groups.add("ghost").add("other");
    const changes: Change[] = [
      { put: "resource", row: { owner, seq: 1, kind: "fake-group", name: "ghost", data: {}, state: "held" } },
      { put: "resource", row: { owner, seq: 2, kind: "unknown", name: "x", data: {}, state: "held" } },
      { take: "lease", row: { kind: "uid", value: UID_FIRST, owner, state: "leased" } },
    ];
    await world.state.handle({ dead: false }).commit(changes);
    const report = await world.core().reconcile();
    expect(report.stuck.map(({ kind }) => kind)).toEqual(["unknown"]);
    const held = await world.holdings();
    expect(held.leases).toEqual([]);
    expect(held.resources).toEqual(["fake-group ghost", "unknown x"]);
    expect(held.groups).toEqual(["ghost", "other"]);
  });

  test("a directory without a record is reported and not touched", async () => {
    await using world = await World.create();
    await mkdir(join(world.instancesDir, "stranger"));
    const report = await world.core().reconcile();
    expect(report.orphanDirectories).toEqual(["stranger"]);
    expect((await world.holdings()).instances).toEqual(["stranger"]);
  });

  test("requests that were in flight are forgotten", async () => {
    await using world = await World.create();
    const row = { hash: "h", bodyHash: "b", reply: null, createdAtUnixMs: 0 };
    await world.state.handle({ dead: false }).commit([{ begin: "idempotency", row }]);
    await world.core().reconcile();
    expect(world.state.tables.idempotency).toEqual({});
  });

  test.each([
    [{ version: 99 }, "STATE_NEWER"],
    [{ phase: "asleep" }, "STATE_UNAVAILABLE"],
    [{ id: "two" }, "STATE_UNAVAILABLE"],
  ])("a record that is not understood stops the agent (%#)", async (damage, code) => {
    await using world = await World.create();
    await withOneSandbox(world);
    const row = world.state.tables.records.one;
    if (row === undefined) throw new Error("no row");
    world.state.tables.records.one = { ...row, body: { ...row.body, ...damage } };
    await expect(world.core().reconcile()).rejects.toMatchObject({ code });
    expect((await world.holdings()).processes).toHaveLength(1);
  });
});

test("the whole life works on the real store, over a restart", async () => {
  await using world = await World.create();
  await withStore(world, async (store) => {
    const core = world.core({ store });
    await core.operations.create(admin, create);
    await core.operations.writeFile(admin, "one", "kept", Buffer.from("kept"), 0o644);
    await core.operations.baseline(admin, "one", ["/"]);
    await core.operations.dryRun(admin, "one", { command: "write /x y" });
    await core.operations.stop(admin, "one");
    await core.operations.start(admin, "one");
    await core.shutdown(1000);
  });
  await withStore(world, async (store) => {
    const core = world.core({ store });
    expect((await core.reconcile()).fates.get("adopted")).toEqual(["one"]);
    expect((await core.operations.changes(admin, "one")).unchanged).toBe(1);
    await core.operations.remove(admin, "one");
    core.startKeepers();
    await Bun.sleep(50);
    await core.shutdown(1000);
    expect(await store.load()).toEqual({
      records: [],
      secrets: [],
      resources: [],
      leases: [],
      pools: [],
      inFlight: [],
    });
    const actions = (await store.events({ limit: 100 })).map(({ action }) => action);
    expect(actions).toEqual([
      "sandbox.created",
      "sandbox.ready",
      "sandbox.stopping",
      "sandbox.stopped",
      "sandbox.ready",
      "sandbox.removed",
    ]);
  });
});

async function withStore(world: World, work: (store: Store) => Promise<void>): Promise<void> {
  const store = await openStore({ stateDir: world.root, log: silentLog });
  try {
    await work(store);
  } finally {
    await store.close();
  }
}
