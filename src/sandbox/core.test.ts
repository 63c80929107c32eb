import { describe, expect, test } from "bun:test";
import { lstat, mkdir, readlink } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../config/limits.ts";
import type { AgentError } from "../errors/agent-error.ts";
import type { Caller, CreateSandboxRequest, IdempotentRequest, VmRecord } from "./operations.ts";
import { ExecutionWorld, SANDBOX, until } from "./testing/execution-world.ts";
import { admin, NOTHING_HELD, UID_FIRST, World } from "./testing/world.ts";

const request = (fields: Partial<CreateSandboxRequest> = {}): CreateSandboxRequest => ({
  backend: "fake",
  backendRequest: {},
  ...fields,
});

const tenant = (name: string): Caller => ({ actor: name, role: "admin", tenant: name, token: name });
const code = (wanted: string) => ({ code: wanted });

/** The process of a sandbox on the fake host. */
function processOf(world: World, id: string) {
  const record = world.state.tables.records[id]?.body;
  const process = world.host.processes.get(String(record?.shortName));
  if (process === undefined) throw new Error(`${id} has no process`);
  return { process, shortName: String(record?.shortName) };
}

describe("create", () => {
  test("answers a record that is ready, and holds exactly what it says", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const record = await operations.create(admin, request({ name: "box", labels: { a: "1" }, ttlSeconds: 60 }));
    expect(record).toMatchObject({
      name: "box",
      status: "running",
      state: "ready",
      backend: "flux-vm",
      pid: null,
      error: null,
      labels: { a: "1" },
      created_at: "2027-01-15T08:00:00.000Z",
      expires_at: "2027-01-15T08:01:00.000Z",
      request: { image: "fake", vcpus: 1, memory_mib: 512, network: { mode: "none" }, agent: null },
      isolation: "fake",
      enforcement: { filesystem: "fake" },
    });
    expect(operations.get(admin, record.id)).toEqual(record);
    const held = await world.holdings();
    expect(held).toMatchObject({
      volumes: [record.id],
      instances: [record.id],
      records: [record.id],
      secrets: [record.id],
      leases: [UID_FIRST],
    });
    expect(held.processes).toHaveLength(1);
    const directory = await lstat(join(world.instancesDir, record.id));
    expect(directory.mode & 0o777).toBe(0o711);
    expect(await readlink(join(world.instancesDir, record.id, "files"))).toBe(join(world.root, record.id));
    expect(world.events.map(({ action }) => action)).toEqual(["sandbox.created", "sandbox.ready"]);
  });

  test("never shows the guest token", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const record = await operations.create(admin, request());
    const token = Object.values(world.state.tables.secrets)[0]?.value ?? "";
    expect(token).toMatch(/^[0-9a-f]{64}$/);
    expect(JSON.stringify([record, world.state.tables.records, world.state.tables.events])).not.toContain(token);
    expect(JSON.stringify(world.state.tables.resources)).not.toContain(token);
  });

  test.each([
    [{ id: "a_b" }, "INVALID_ID"],
    [{ id: "x".repeat(65) }, "INVALID_ID"],
    [{ name: "" }, "BAD_REQUEST"],
    [{ ttlSeconds: 0 }, "BAD_REQUEST"],
    [{ ttlSeconds: 1.5 }, "BAD_REQUEST"],
    [{ labels: { "a,b": "" } }, "BAD_REQUEST"],
    [{ backend: "none" }, "CAPABILITY_MISSING"],
  ])("%p is refused with %p and leaves nothing", async (fields, expected) => {
    await using world = await World.create();
    const { operations } = world.core();
    await expect(operations.create(admin, request(fields))).rejects.toMatchObject(code(expected));
    expect(await world.holdings()).toEqual(NOTHING_HELD);
  });

  test("a taken id, and one whose files are still there, are conflicts", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await expect(operations.create(admin, request({ id: "one" }))).rejects.toMatchObject(code("SANDBOX_EXISTS"));
    await mkdir(join(world.instancesDir, "two"));
    await expect(operations.create(admin, request({ id: "two" }))).rejects.toMatchObject(code("SANDBOX_EXISTS"));
    await expect(lstat(join(world.instancesDir, "two"))).resolves.toBeDefined();
    expect(operations.list(admin, {})).toHaveLength(1);
  });

  test("of twenty with one id at once, one wins", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, () => operations.create(admin, request({ id: "one" }))),
    );
    expect(outcomes.filter(({ status }) => status === "fulfilled")).toHaveLength(1);
    expect((await world.holdings()).leases).toEqual([UID_FIRST]);
  });

  for (const fault of ["plan", "make-volume", "launch", "channel"] as const) {
    test(`a failing ${fault} gives everything back`, async () => {
      await using world = await World.create();
      const { operations } = world.core();
      world.host.faults.add(fault);
      await expect(operations.create(admin, request({ id: "one" }))).rejects.toBeDefined();
      expect(operations.visible(admin, "one")).toBe(false);
      expect(await world.holdings()).toEqual(NOTHING_HELD);
      world.host.faults.clear();
      expect((await operations.create(admin, request({ id: "one" }))).state).toBe("ready");
    });
  }

  test.each([
    [20, "DEADLINE_EXCEEDED"],
    [5000, "ready"],
  ])("a guest agent that boots slowly has %d ms to answer", async (readyTimeoutMs, outcome) => {
    await using world = await World.create();
    const { operations } = world.core({ settings: { readyTimeoutMs } });
    world.host.answerGate = Bun.sleep(200);
    const created = operations.create(admin, request({ id: "one" }));
    const said = await created.then(
      ({ state }) => state,
      ({ code }: AgentError) => code,
    );
    expect(said).toBe(outcome);
    if (outcome !== "ready") expect(await world.holdings()).toEqual(NOTHING_HELD);
  });

  test("one that cannot be undone stays as failed with its journal, and can be removed later", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    world.host.faults.add("launch").add("group");
    await expect(operations.create(admin, request({ id: "one" }))).rejects.toMatchObject(code("LAUNCH_FAILED"));
    const record = operations.get(admin, "one");
    expect(record).toMatchObject({ state: "failed", status: "failed" });
    expect(String(record.error)).toContain("fake-group");
    expect((await world.holdings()).volumes).toEqual(["one"]);
    await expect(operations.remove(admin, "one")).rejects.toMatchObject(code("RELEASE_FAILED"));
    expect(operations.get(admin, "one").state).toBe("failed");
    world.host.faults.clear();
    await operations.remove(admin, "one");
    expect(await world.holdings()).toEqual(NOTHING_HELD);
  });

  test("a refused commit at any step leaves a sandbox that is ready, or none", async () => {
    for (let refused = 1; refused < 30; refused += 1) {
      await using world = await World.create();
      const { operations } = world.core();
      let count = 0;
      world.state.refuse = () => {
        count += 1;
        return count === refused;
      };
      const outcome = await operations.create(admin, request({ id: "one" })).then(
        () => "ready",
        () => "refused",
      );
      if (outcome === "ready") {
        expect(refused).toBeGreaterThan(5);
        return;
      }
      expect(await world.holdings()).toEqual(NOTHING_HELD);
    }
    throw new Error("a create never came to its end");
  });

  test("a lease that the state already knows is skipped", async () => {
    await using world = await World.create();
    const stray = { kind: "uid", value: UID_FIRST, owner: "other/1", state: "leased" } as const;
    const { operations } = world.core();
    await world.state.handle({ dead: false }).commit([{ take: "lease", row: stray }]);
    const record = await operations.create(admin, request());
    expect(world.state.tables.records[record.id]?.body.leases).toEqual({ uid: UID_FIRST + 1 });
  });

  test("uids run out with an error, and come back", async () => {
    await using world = await World.create();
    const { operations } = world.core({ settings: { leaseRanges: { uid: { first: 5, count: 2 } } } });
    const [first] = await Promise.all([operations.create(admin, request()), operations.create(admin, request())]);
    await expect(operations.create(admin, request())).rejects.toMatchObject(code("UID_POOL_EXHAUSTED"));
    world.host.dirtyUids.add(5);
    await operations.remove(admin, (first as VmRecord).id);
    await expect(operations.create(admin, request())).rejects.toMatchObject(code("UID_POOL_EXHAUSTED"));
    world.host.dirtyUids.clear();
    await operations.create(admin, request());
  });
});

describe("idempotency", () => {
  const keyed = (hash: string, status: number): IdempotentRequest => ({
    hash,
    bodyHash: "b",
    reply: (record) => ({ status, body: JSON.stringify(record) }),
  });

  test("the reply becomes durable with the result", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const record = await operations.create(admin, request({ idempotency: keyed("h", 201) }));
    expect(world.state.tables.idempotency.h?.reply).toEqual({ status: 201, body: JSON.stringify(record) });
    await operations.remove(admin, record.id, keyed("d", 204));
    expect(world.state.tables.idempotency.d?.reply).toEqual({ status: 204, body: "null" });
  });

  test("a failure leaves no row", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    world.host.faults.add("launch");
    const failing = operations.create(admin, request({ idempotency: keyed("h", 201) }));
    await expect(failing).rejects.toBeDefined();
    expect(world.state.tables.idempotency).toEqual({});
  });

  test("a second request with a key in flight is refused", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const outcomes = await Promise.allSettled([
      operations.create(admin, request({ idempotency: keyed("h", 201) })),
      operations.create(admin, request({ idempotency: keyed("h", 201) })),
    ]);
    const refused = outcomes.filter((outcome) => outcome.status === "rejected");
    expect(refused.map(({ reason }) => reason.code)).toEqual(["IDEMPOTENCY_IN_FLIGHT"]);
    expect(operations.list(admin, {})).toHaveLength(1);
  });

  test("two removals with keys of their own both leave a reply", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await Promise.all([
      operations.remove(admin, "one", keyed("d1", 204)),
      operations.remove(admin, "one", keyed("d2", 204)),
    ]);
    expect(Object.values(world.state.tables.idempotency).map(({ reply }) => reply?.status)).toEqual([204, 204]);
  });
});

describe("who sees what", () => {
  test("unknown and foreign ids are the same error everywhere", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(tenant("red"), request({ id: "one" }));
    const other = tenant("blue");
    const calls: ((id: string) => unknown)[] = [
      (id) => operations.get(other, id),
      (id) => operations.remove(other, id),
      (id) => operations.start(other, id),
      (id) => operations.stop(other, id),
      (id) => operations.pause(other, id),
      (id) => operations.resume(other, id),
      (id) => operations.update(other, id, {}),
      (id) => operations.ping(other, id),
      (id) => operations.process(other, id, { command: "true" }),
      (id) => operations.readFile(other, id, "a"),
      (id) => operations.writeFile(other, id, "a", new Uint8Array(), 0),
      (id) => operations.baseline(other, id, ["/"]),
      (id) => operations.changes(other, id),
      (id) => operations.dryRun(other, id, { command: "true" }),
    ];
    for (const call of calls) {
      for (const id of ["one", "none"]) {
        await expect((async () => await call(id))()).rejects.toMatchObject(code("SANDBOX_NOT_FOUND"));
      }
    }
    expect(operations.visible(other, "one")).toBe(false);
    expect(operations.list(other, {})).toEqual([]);
    expect(operations.list(tenant("red"), {})).toHaveLength(1);
  });

  test("a tenant's sandbox is its own, and another's name is refused", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const record = await operations.create(tenant("red"), request());
    expect(record.request).toMatchObject({ tenant: "red", created_by_token: "red" });
    const foreign = operations.create(tenant("red"), request({ tenant: "blue" }));
    await expect(foreign).rejects.toMatchObject(code("TENANT_REFUSED"));
  });

  test("lists are filtered and ordered by creation", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    for (const [id, labels] of [
      ["c", { k: "1" }],
      ["a", { k: "2" }],
      ["b", {}],
    ] as const) {
      world.nowUnixMs += 1000;
      await operations.create(
        admin,
        request({ id, name: `name-${id}`, labels, tenant: id === "b" ? "red" : undefined }),
      );
    }
    await operations.stop(admin, "a");
    const ids = (filter: Parameters<typeof operations.list>[1]) => operations.list(admin, filter).map(({ id }) => id);
    expect(ids({})).toEqual(["c", "a", "b"]);
    expect(ids({ state: "stopped" })).toEqual(["a"]);
    expect(ids({ label: "k" })).toEqual(["c", "a"]);
    expect(ids({ label: "k!=1" })).toEqual(["a", "b"]);
    expect(ids({ name: "name-b" })).toEqual(["b"]);
    expect(ids({ tenant: "red" })).toEqual(["b"]);
    expect(() => ids({ state: "asleep" })).toThrow();
  });

  test("quotas count per token, also for creates in flight", async () => {
    await using world = await World.create();
    const settings = { vmsMaxPerToken: 2, memoryMibMaxPerToken: 1024 };
    const { operations } = world.core({ settings });
    const red = tenant("red");
    const outcomes = await Promise.allSettled([1, 2, 3].map(() => operations.create(red, request())));
    expect(outcomes.filter(({ status }) => status === "rejected")).toHaveLength(1);
    expect(operations.quota(red)).toEqual({ vms: 2, memoryMib: 1024, vmsMax: 2, memoryMibMax: 1024 });
    const big = operations.create(tenant("blue"), request({ backendRequest: { memory_mib: 2048 } }));
    await expect(big).rejects.toMatchObject(code("QUOTA_EXCEEDED"));
    await operations.create(admin, request());
    expect(operations.quota(admin).vmsMax).toBeNull();
  });

  test("the host takes as many sandboxes as its limit says", async () => {
    await using world = await World.create();
    const { operations } = world.core({ settings: { sandboxesMax: 1 } });
    await operations.create(admin, request());
    await expect(operations.create(admin, request())).rejects.toMatchObject(code("SANDBOXES_EXHAUSTED"));
  });
});

describe("stop and start", () => {
  test("the workspace and the uid stay, the processes go", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await operations.writeFile(admin, "one", "a", Buffer.from("kept"), 0o600);
    expect(await operations.stop(admin, "one")).toMatchObject({ state: "stopped", status: "stopped", error: null });
    expect(await world.holdings()).toMatchObject({ processes: [], groups: [], volumes: ["one"] });
    await expect(operations.process(admin, "one", { command: "exit 0" })).rejects.toMatchObject(code("INVALID_STATE"));
    expect(await operations.start(admin, "one")).toMatchObject({ state: "ready", status: "running" });
    const { content } = await operations.readFile(admin, "one", "a");
    expect(Buffer.from(content).toString()).toBe("kept");
    expect((await world.holdings()).leases).toEqual([UID_FIRST]);
  });

  test("both are no-ops when done, and repeated calls share one outcome", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    expect((await operations.start(admin, "one")).state).toBe("ready");
    const stops = await Promise.all([1, 2, 3].map(() => operations.stop(admin, "one")));
    expect(stops.map(({ state }) => state)).toEqual(["stopped", "stopped", "stopped"]);
    expect(world.events.filter(({ action }) => action === "sandbox.stopping")).toHaveLength(1);
    expect((await operations.stop(admin, "one")).state).toBe("stopped");
    await Promise.all([operations.start(admin, "one"), operations.stop(admin, "one"), operations.start(admin, "one")]);
    expect(operations.get(admin, "one").state).toBe("ready");
  });

  test("an instance that does not stop politely is ended by its journal", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    world.host.faults.add("stop");
    expect((await operations.stop(admin, "one")).state).toBe("stopped");
    expect((await world.holdings()).processes).toEqual([]);
  });

  test("a stop that cannot release is failed, and stop again finishes it", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    world.host.faults.add("group");
    await expect(operations.stop(admin, "one")).rejects.toMatchObject(code("RELEASE_FAILED"));
    expect(operations.get(admin, "one").state).toBe("failed");
    await expect(operations.start(admin, "one")).rejects.toMatchObject(code("RELEASE_FAILED"));
    world.host.faults.clear();
    await operations.stop(admin, "one");
    expect((await world.holdings()).groups).toEqual([]);
    expect((await operations.start(admin, "one")).state).toBe("ready");
  });

  test("a start that fails leaves a failed sandbox with its workspace and nothing else", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await operations.stop(admin, "one");
    world.host.faults.add("launch");
    await expect(operations.start(admin, "one")).rejects.toMatchObject(code("LAUNCH_FAILED"));
    expect(operations.get(admin, "one")).toMatchObject({ state: "failed" });
    expect(await world.holdings()).toMatchObject({ groups: [], processes: [], volumes: ["one"] });
    world.host.faults.clear();
    expect(await operations.start(admin, "one")).toMatchObject({ state: "ready", error: null });
  });
});

describe("an instance that ends by itself", () => {
  test("makes the sandbox failed with the reason, and stop and remove still work", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    world.host.kill(processOf(world, "one").shortName, "killed by signal 9");
    await Bun.sleep(5);
    expect(operations.get(admin, "one")).toMatchObject({ state: "failed", error: "killed by signal 9" });
    expect((await world.holdings()).groups).toEqual([]);
    expect((await operations.stop(admin, "one")).state).toBe("failed");
    await operations.remove(admin, "one");
    expect(operations.visible(admin, "one")).toBe(false);
  });

  test("the end of an earlier run does not touch the next", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const gate = Promise.withResolvers<void>();
    world.host.endGate = gate.promise;
    await operations.stop(admin, "one");
    await operations.start(admin, "one");
    gate.resolve();
    await Bun.sleep(5);
    expect(operations.get(admin, "one")).toMatchObject({ state: "ready", error: null });
    await operations.ping(admin, "one");
  });
});

describe("pause and resume", () => {
  test("freeze and thaw in place", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    expect(await operations.pause(admin, "one")).toMatchObject({ state: "paused", status: "paused" });
    expect(operations.get(admin, "one").paused_at).toBeString();
    const declining = { ...admin, declinesResume: true };
    await expect(operations.process(declining, "one", { command: "exit 0" })).rejects.toMatchObject(
      code("SANDBOX_PAUSED"),
    );
    await expect(operations.stop(admin, "one")).rejects.toMatchObject(code("INVALID_STATE"));
    expect(await operations.resume(admin, "one")).toMatchObject({ state: "ready", paused_at: null });
    expect(world.events.map(({ action }) => action)).toEqual([
      "sandbox.created",
      "sandbox.ready",
      "sandbox.pausing",
      "sandbox.paused",
      "sandbox.resumed",
    ]);
    await operations.pause(admin, "one");
    await operations.remove(admin, "one");
  });

  test("a pause that fails thaws again", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    world.host.faults.add("pause");
    await expect(operations.pause(admin, "one")).rejects.toMatchObject(code("PLUGIN_FAULT"));
    expect(operations.get(admin, "one").state).toBe("ready");
  });

  test("a running command refuses a pause", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const running = operations.process(admin, "one", { command: "sleep 20" });
    await Bun.sleep(2);
    await expect(operations.pause(admin, "one")).rejects.toMatchObject(code("SANDBOX_BUSY"));
    await running;
  });

  test("a forced pause freezes what runs, which goes on afterwards", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "x" });
    const { operations } = at.core;
    const both = [operations.pause(admin, SANDBOX), operations.pause(admin, SANDBOX, { force: true })];
    expect((await Promise.allSettled(both)).map(({ status }) => status)).toEqual(["rejected", "fulfilled"]);
    expect(operations.get(admin, SANDBOX)).toMatchObject({ state: "paused" });
    expect(await at.view("e")).toMatchObject({ status: "running" });
    expect(await operations.resume(admin, SANDBOX)).toMatchObject({ state: "running" });
    process.exit(4);
    await until(async () => (await at.view("e")).exitCode === 4, "it has gone on");
  });
});

describe("commands and files", () => {
  test("a command shows as running and leaves its exit status", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const running = operations.process(admin, "one", { command: "sleep 20;exit 3" });
    await Bun.sleep(2);
    expect(operations.get(admin, "one")).toMatchObject({ state: "running", status: "running" });
    expect((await running).exitCode).toBe(3);
    expect(operations.get(admin, "one")).toMatchObject({ state: "ready", last_exit_status: { code: 3 } });
  });

  test.each([
    [undefined, 5000],
    [0, 5000],
    [1.5, 1500],
    [20, 20_000],
    [9999, 20_000],
  ])("a timeout of %p seconds is %p ms within the plan", async (timeoutSeconds, expected) => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const result = await operations.process(admin, "one", { command: "timeout", timeoutSeconds });
    expect(result).toMatchObject({ timedOut: true });
    expect(Buffer.from(result.stdout).toString()).toBe(String(expected));
  });

  test.each([
    [{}, "BAD_REQUEST"],
    [{ command: "a", argv: ["a"] }, "BAD_REQUEST"],
    [{ argv: [] }, "BAD_REQUEST"],
    [{ argv: [""] }, "BAD_REQUEST"],
    [{ command: "a\0b" }, "BAD_REQUEST"],
    [{ command: "a", env: { "a=b": "" } }, "BAD_REQUEST"],
    [{ command: "a", env: { "": "" } }, "BAD_REQUEST"],
    [{ command: "a", timeoutSeconds: -1 }, "BAD_REQUEST"],
    [{ command: "a", timeoutSeconds: Number.NaN }, "BAD_REQUEST"],
    [{ command: "a", cwd: `/${"x".repeat(limits.pathMaxBytes)}` }, "PATH_INVALID"],
  ])("a bad command is refused (%#)", async (command, expected) => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await expect(operations.process(admin, "one", command)).rejects.toMatchObject(code(expected));
  });

  test("a command of 1 MiB fits, one byte more does not", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const command = "é".repeat(limits.commandMaxBytes / 2);
    await operations.process(admin, "one", { command });
    const longer = operations.process(admin, "one", { command: `${command}x` });
    await expect(longer).rejects.toMatchObject(code("COMMAND_TOO_LARGE"));
  });

  test("files go by the two path conventions of a workspace", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await operations.writeFile(admin, "one", "work/a", Buffer.from("x"), 0o4755);
    for (const path of ["work/a", join(world.instancesDir, "one", "files", "work/a"), join(world.root, "one/work/a")]) {
      expect((await operations.readFile(admin, "one", path)).mode).toBe(0o755);
    }
    for (const path of ["/work/a", "/etc/passwd", "../a", ""]) {
      await expect(operations.readFile(admin, "one", path)).rejects.toMatchObject(code("PATH_INVALID"));
    }
    const big = new Uint8Array(limits.fileMaxBytes + 1);
    await expect(operations.writeFile(admin, "one", "b", big, 0o644)).rejects.toMatchObject(code("FILE_TOO_LARGE"));
  });

  test("commands run while a lifecycle command waits", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    const gate = Promise.withResolvers<void>();
    world.host.launchGate = gate.promise;
    const second = operations.create(admin, request({ id: "two" }));
    await operations.process(admin, "one", { command: "exit 0" });
    await expect(operations.process(admin, "two", { command: "x" })).rejects.toMatchObject(code("SANDBOX_NOT_READY"));
    gate.resolve();
    await second;
    await operations.ping(admin, "two");
  });
});

describe("remove", () => {
  test("gives back everything, from any state, and the id is free again", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    for (const prepare of [
      async () => undefined,
      async () => void (await operations.stop(admin, "one")),
      async () => void (await operations.pause(admin, "one")),
      async () => world.host.kill(processOf(world, "one").shortName, "gone"),
    ]) {
      await operations.create(admin, request({ id: "one" }));
      await prepare();
      await Promise.all([operations.remove(admin, "one"), operations.remove(admin, "one")]);
      expect(await world.holdings()).toEqual(NOTHING_HELD);
      expect(() => operations.get(admin, "one")).toThrow();
    }
    expect(world.events.at(-1)?.action).toBe("sandbox.removed");
  });

  test("asks the instance to stop before anything of it is released", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one" }));
    await operations.remove(admin, "one");
    expect(world.host.trace).toEqual(["stop", "release fake-process", "release fake-group", "release fake-volume"]);
  });

  test("during a create waits for it and then removes", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    const gate = Promise.withResolvers<void>();
    world.host.launchGate = gate.promise;
    const created = operations.create(admin, request({ id: "one" }));
    await Bun.sleep(2);
    const removed = operations.remove(admin, "one");
    gate.resolve();
    await created;
    await removed;
    expect(await world.holdings()).toEqual(NOTHING_HELD);
  });

  test("the uid waits until the reaper finds it unused", async () => {
    await using world = await World.create();
    const core = world.core();
    await core.operations.create(admin, request({ id: "one" }));
    world.host.dirtyUids.add(UID_FIRST);
    await core.operations.remove(admin, "one");
    core.startKeepers();
    await Bun.sleep(20);
    expect(world.quarantined()).toEqual([UID_FIRST]);
    world.host.dirtyUids.clear();
    await Bun.sleep(20);
    expect(world.quarantined()).toEqual([]);
    await core.shutdown(100);
  });

  test("a time to live ends the sandbox by wall time", async () => {
    await using world = await World.create();
    const core = world.core();
    await core.operations.create(admin, request({ id: "short", ttlSeconds: 10 }));
    await core.operations.create(admin, request({ id: "long", ttlSeconds: 1000 }));
    core.startKeepers();
    await Bun.sleep(20);
    expect(core.operations.list(admin, {})).toHaveLength(2);
    world.nowUnixMs += 10_000;
    await Bun.sleep(30);
    expect(core.operations.list(admin, {}).map(({ id }) => id)).toEqual(["long"]);
    await core.shutdown(100);
  });
});

describe("update", () => {
  test("changes name and labels, and concurrent patches compose", async () => {
    await using world = await World.create();
    const { operations } = world.core();
    await operations.create(admin, request({ id: "one", labels: { a: "1" } }));
    await Promise.all([
      operations.update(admin, "one", { labels: { b: "2" } }),
      operations.update(admin, "one", { name: "new", labels: { a: null } }),
    ]);
    expect(operations.get(admin, "one")).toMatchObject({ name: "new", labels: { b: "2" } });
    await expect(operations.update(admin, "one", { name: "" })).rejects.toMatchObject(code("BAD_REQUEST"));
  });
});

describe("shutdown", () => {
  test("lets go without ending anything, and refuses what is new", async () => {
    await using world = await World.create();
    const core = world.core();
    await core.operations.create(admin, request({ id: "one" }));
    await core.shutdown(100);
    expect((await world.holdings()).processes).toHaveLength(1);
    await expect(core.operations.create(admin, request())).rejects.toMatchObject(code("SHUTTING_DOWN"));
    const next = world.core();
    await next.reconcile();
    await next.operations.ping(admin, "one");
  });

  test("ends a dry-run at once, with its copy, and says why", async () => {
    await using world = await World.create();
    const core = world.core();
    await core.operations.create(admin, request({ id: "one" }));
    const before = await world.holdings();
    const running = core.operations.dryRun(admin, "one", { command: "sleep 300" }).catch((error: unknown) => error);
    for (let i = 0; i < 500 && world.host.processes.size < 2; i += 1) await Bun.sleep(1);
    core.close();
    expect(await running).toMatchObject({ code: "SHUTTING_DOWN" });
    expect(await world.holdings()).toEqual(before);
    await core.operations.ping(admin, "one");
  });

  test("counts sandboxes for metrics, also when there are none", async () => {
    await using world = await World.create();
    const core = world.core();
    expect([...core.census().byStatus]).toEqual([
      ["creating", 0],
      ["running", 0],
      ["paused", 0],
      ["stopped", 0],
      ["failed", 0],
    ]);
    await core.operations.create(admin, request());
    expect(core.census().byStatus.get("running")).toBe(1);
    expect(core.census().byBackend.get("fake")).toBe(1);
  });
});
