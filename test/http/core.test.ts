// HTTP on the real core (with a host in memory): one life of a sandbox over the wire, and Idempotency-Key across agents
// that die at every step.
import { describe, expect, test } from "bun:test";
import { Harness } from "../../src/http/testing/harness.ts";
import type { CrashHook, CrashPoint } from "../../src/sandbox/crash-points.ts";
import { World } from "../../src/sandbox/testing/world.ts";

const PASSES_MAX = 60;

/** A new agent on the world's state; earlier ones are dead from now on. */
async function agent(world: World, crashPoint?: CrashHook): Promise<Harness> {
  const core = world.core({ crashPoint });
  await core.reconcile();
  const { operations, executions, files } = core;
  return new Harness({ core: { operations, executions, files, store: world.state.handle({ dead: false }) } });
}

const create = (harness: Harness) =>
  harness.call("POST", "/v1/sandboxes", { json: { backend: "fake" }, headers: { "idempotency-key": "k" } });

const remove = (harness: Harness, id: string) =>
  harness.call("DELETE", `/v1/sandboxes/${id}`, { headers: { "idempotency-key": "k" } });

test("one life over the wire", async () => {
  await using world = await World.create();
  const harness = await agent(world);
  const made = await harness.call("POST", "/v1/sandboxes", {
    json: { backend: "fake", name: "n", labels: { a: "b" } },
  });
  expect([made.status, made.json.name, made.json.status]).toEqual([201, "n", "running"]);
  const path = `/v1/sandboxes/${made.json.id}`;
  const post = (action: string, json?: unknown) => harness.call("POST", `${path}/${action}`, { json });

  const file = { path: "work/a.txt", content_base64: Buffer.from("one").toString("base64"), mode: 0o600 };
  expect((await post("fs/write", file)).json).toEqual({ result: "file-written" });
  expect((await post("fs/read", { path: "work/a.txt" })).json).toEqual({
    result: "file-content",
    content_base64: file.content_base64,
    mode: 0o600,
  });
  expect((await post("fs/read", { path: "/etc/passwd" })).status).toBe(400);
  expect((await post("fs/read", { path: "work/none" })).json.code).toBe("FILE_NOT_FOUND");
  expect((await post("changes")).json.code).toBe("BASELINE_MISSING");
  expect((await post("baseline", { paths: [] })).json.code).toBe("PATHS_REQUIRED");
  expect((await post("baseline", { paths: ["/"] })).json).toEqual({ ok: true, files: 1, mode: "sha256", paths: ["/"] });
  expect((await post("process", { command: "write /work/b.txt two" })).json.exit_code).toBe(0);
  expect((await post("changes")).json).toMatchObject({
    added: ["/work/b.txt"],
    modified: [],
    deleted: [],
    unchanged: 1,
  });
  const dry = (await post("dry-run", { command: "write /work/c.txt x" })).json;
  expect(dry).toMatchObject({ result: "exec", discarded: true, changes: { added: ["/work/c.txt"] } });
  expect((await post("changes")).json.added).toEqual(["/work/b.txt"]);

  expect((await post("stop")).json.status).toBe("stopped");
  expect((await post("process", { command: "exit 0" })).status).toBe(412);
  expect((await post("start")).json.status).toBe("running");
  expect((await harness.call("GET", "/v1/vms?label=a%3Db")).json.items).toHaveLength(1);
  expect((await harness.call("GET", "/v1/vms?label=%3D%3D")).status).toBe(400);
  expect((await harness.call("PATCH", path, { json: { labels: { "": "x" } } })).status).toBe(400);
  expect((await harness.call("GET", "/v1/quotas/me")).json.vms).toBe(1);
  expect((await harness.call("DELETE", path)).status).toBe(204);
  expect((await harness.call("GET", path)).status).toBe(404);
  const { items } = (await harness.call("GET", `/v1/events?vm=${made.json.id}`)).json;
  expect(items.map(({ event }: { event: string }) => event)).toContain("sandbox.created");
});

test("84: what reaches the guest resumes a paused sandbox, unless the caller declines", async () => {
  await using world = await World.create();
  const harness = await agent(world);
  const made = await harness.call("POST", "/v1/sandboxes", { json: { backend: "fake" } });
  const path = `/v1/sandboxes/${made.json.id}`;
  const run = (headers: Record<string, string> = {}) =>
    harness.call("POST", `${path}/process`, { json: { command: "exit 0" }, headers });
  const state = async () => (await harness.call("GET", path)).json.state;
  expect((await harness.call("POST", `${path}/pause`)).json.state).toBe("paused");
  for (const value of ["1", "true", ""]) {
    const declined = await run({ "x-fluxvm-no-auto-resume": value });
    expect([declined.status, declined.json.code]).toEqual([423, "SANDBOX_PAUSED"]);
  }
  await harness.call("GET", `${path}/executions`);
  await harness.call("GET", "/v1/sandboxes");
  expect(await state()).toBe("paused");
  expect((await run({ "x-fluxvm-no-auto-resume": "0" })).json.exit_code).toBe(0);
  expect(await state()).toBe("ready");
  expect((await harness.call("POST", `${path}/pause`, { json: { force: "yes" } })).status).toBe(422);
  const busy = run();
  expect((await harness.call("POST", `${path}/pause`, { json: { force: true } })).json.state).toBe("paused");
  await busy;
  // Whatever this guest answers to that.
  await harness.call("GET", `${path}/files/stat?path=/none`);
  expect(await state()).toBe("ready");
  const { items } = (await harness.call("GET", `/v1/events?vm=${made.json.id}`)).json;
  const resumed = items.filter(({ event }: { event: string }) => event === "sandbox.resumed");
  const automatic = { attributes: { reason: "auto_resume" } };
  expect(resumed).toMatchObject([automatic, automatic]);
});

describe("Idempotency-Key across agents", () => {
  test("a create that was answered is answered again by the next agent", async () => {
    await using world = await World.create();
    const first = await create(await agent(world));
    const second = await create(await agent(world));
    expect([second.status, second.text]).toEqual([201, first.text]);
    expect(second.headers.get("idempotent-replayed")).toBe("true");
    expect(world.host.processes.size).toBe(1);
  });

  test("a create that was cut off anywhere is made once when it is sent again", async () => {
    const seen = await crashEverywhere(
      (harness) => create(harness),
      async (harness, world) => {
        const again = await create(harness);
        expect(again.status).toBe(201);
        expect(Object.keys(world.state.tables.records)).toEqual([again.json.id]);
        expect(world.host.processes.size).toBe(1);
      },
    );
    expect(seen).toContain("create.accepted");
    expect(seen).toContain("create.ready");
  });

  test("a removal that was cut off anywhere ends the sandbox when it is sent again", async () => {
    const made: { id: string } = { id: "" };
    const seen = await crashEverywhere(
      async (harness) => remove(harness, made.id),
      async (harness, world) => {
        const again = await remove(harness, made.id);
        // The next agent may have finished what was begun; then the sandbox is unknown to it.
        expect([204, 404]).toContain(again.status);
        expect(world.state.tables.records).toEqual({});
        expect(world.host.processes.size).toBe(0);
      },
      async (harness) => {
        made.id = (await create(harness)).json.id;
      },
    );
    expect(seen).toContain("remove.journalled");
    expect(seen).toContain("remove.gone");
  });
});

type Step = (harness: Harness, world: World) => Promise<unknown>;

/** Acts with a crash at the first, second, … step until one goes through; checks with the next agent each time. */
async function crashEverywhere(act: Step, check: Step, prepare?: Step): Promise<CrashPoint[]> {
  const seen: CrashPoint[] = [];
  for (let nth = 1; nth <= PASSES_MAX; nth += 1) {
    await using world = await World.create();
    if (prepare !== undefined) await prepare(await agent(world), world);
    const crash = Promise.withResolvers<CrashPoint>();
    let passed = 0;
    const harness = await agent(world, (point) => {
      passed += 1;
      if (passed < nth) return undefined;
      crash.resolve(point);
      return new Promise<never>(() => {});
    });
    passed = 0;
    const point = await Promise.race([crash.promise, act(harness, world).then(() => null)]);
    await check(await agent(world), world);
    if (point === null) return seen;
    seen.push(point);
  }
  throw new Error("there are more steps than expected");
}
