// Variables of a whole sandbox on a host in memory: which commands get them, who sees their values, and that they last.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { SandboxCore } from "./core.ts";
import type { CreateSandboxRequest } from "./operations.ts";
import { admin, NOTHING_HELD, World } from "./testing/world.ts";

const SECRET = "do-not-show-this";
const request = (env: Record<string, string>): CreateSandboxRequest => ({
  id: "one",
  backend: "fake",
  backendRequest: {},
  env,
});

async function output(core: SandboxCore, command: string, env?: Record<string, string>, id = "one"): Promise<string> {
  const { stdout } = await core.operations.process(admin, id, { command, env });
  return Buffer.from(stdout).toString();
}

test("every command gets them, its own win, and a dry-run has them too", async () => {
  await using world = await World.create();
  const core = world.core();
  await core.operations.create(admin, request({ KEY: SECRET, OTHER: "x", __proto__x: "y" }));
  expect(await output(core, "env KEY")).toBe(SECRET);
  expect([await output(core, "env KEY", { KEY: "mine" }), await output(core, "env OTHER", { KEY: "mine" })]).toEqual([
    "mine",
    "x",
  ]);
  const { exec } = await core.operations.dryRun(admin, "one", { command: "env KEY" });
  expect(Buffer.from(exec.stdout).toString()).toBe(SECRET);
  const { execution } = await core.executions.startExecution(admin, "one", { id: "e", command: "x", env: { A: "1" } });
  expect(execution.id).toBe("e");
  const [process] = world.host.processes.values();
  expect(process?.channel.executions.get("e").request.env).toEqual({
    KEY: SECRET,
    OTHER: "x",
    __proto__x: "y",
    A: "1",
  });
});

test("their names are shown, and their values nowhere", async () => {
  await using world = await World.create();
  const core = world.core();
  const record = await core.operations.create(admin, request({ KEY: SECRET }));
  expect(record.env_names).toEqual(["KEY"]);
  await core.executions.startExecution(admin, "one", { id: "e", command: "x" });
  const { secrets, ...shown } = world.state.tables;
  expect(JSON.stringify([record, core.operations.list(admin, {}), shown, world.events])).not.toContain(SECRET);
  expect(JSON.stringify(secrets)).toContain(SECRET);
});

test("they outlive the agent, and go with the sandbox", async () => {
  await using world = await World.create();
  await world.core().operations.create(admin, request({ KEY: SECRET }));
  const core = world.core();
  await core.reconcile();
  expect(await output(core, "env KEY")).toBe(SECRET);
  await core.operations.stop(admin, "one");
  await core.operations.start(admin, "one");
  expect(await output(core, "env KEY")).toBe(SECRET);
  await core.operations.remove(admin, "one");
  expect(await world.holdings()).toEqual(NOTHING_HELD);
});

test.each([
  ["a name that is empty", { "": "x" }],
  ["a name with =", { "a=b": "x" }],
  ["a NUL in a value", { A: "x\0" }],
  ["a NUL in a name", { "A\0": "x" }],
  ["more bytes than fit", { A: "x".repeat(limits.sandboxEnvironmentMaxBytes) }],
  ["too many", Object.fromEntries(Array.from({ length: limits.environmentMaxEntries + 1 }, (_, n) => [`N${n}`, ""]))],
])("%s is refused before anything is made", async (_, env) => {
  await using world = await World.create();
  const { operations } = world.core();
  await expect(operations.create(admin, request(env))).rejects.toMatchObject({ code: "BAD_REQUEST" });
  expect(await world.holdings()).toEqual(NOTHING_HELD);
});

test("members of a pool get the pool's, and a claim adds to them and wins", async () => {
  await using world = await World.create();
  const before = world.core();
  const template = {
    backend: "fake",
    backendRequest: { cloud_init: { password: SECRET } },
    env: { POOL: SECRET, BOTH: "p" },
  };
  const pool = await before.pools.createPool(admin, { name: "web", size: 1, template });
  expect(JSON.stringify([pool, world.state.tables.pools])).not.toContain(`"POOL":"${SECRET}`);
  expect(JSON.stringify(pool)).not.toContain(SECRET);
  const core = world.core();
  await core.reconcile();
  core.startKeepers();
  const deadline = Date.now() + 5000;
  while (core.pools.pool(admin, "web").ready < 1 && Date.now() < deadline) await Bun.sleep(1);
  const tooLong = { A: "x".repeat(limits.sandboxEnvironmentMaxBytes) };
  await expect(core.pools.claim(admin, "web", { env: tooLong })).rejects.toMatchObject({ code: "BAD_REQUEST" });
  const { id, env_names: names } = await core.pools.claim(admin, "web", { env: { BOTH: "c", CLAIM: "1" } });
  expect(names).toEqual(["POOL", "BOTH", "CLAIM"]);
  const values = async (from: SandboxCore) =>
    Promise.all(["POOL", "BOTH", "CLAIM"].map((name) => output(from, `env ${name}`, undefined, id)));
  expect(await values(core)).toEqual([SECRET, "c", "1"]);
  await core.pools.removePool(admin, "web");
  const after = world.core();
  await after.reconcile();
  expect(await values(after)).toEqual([SECRET, "c", "1"]);
  await after.operations.remove(admin, id);
  expect(await world.holdings()).toEqual(NOTHING_HELD);
});
