// Hosts and workspaces without room: what cannot be kept is refused with the right status, what runs goes on, deletes
// always work, and a sandbox whose storage cannot enforce its bound is stopped when it goes over.
import { afterEach, describe, expect, test } from "bun:test";
import { mkdir, rm, truncate, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { traceHost } from "../harness/host.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const ORDINARY_UID = 65_533;
let agent: TestAgent;
let mounted = "";

afterEach(async () => {
  if (mounted !== "") {
    // The agent goes before the file system that its state is on.
    const { body } = await agent.json<{ items: { id: string }[] }>("GET", "/v1/sandboxes");
    for (const { id } of body.items) await agent.json("DELETE", `/v1/sandboxes/${id}`);
    await agent.stop();
    await run("umount", mounted);
    mounted = "";
  }
  await agent.dispose();
});

async function run(...argv: string[]): Promise<void> {
  const child = Bun.spawn(argv, { stderr: "inherit" });
  if ((await child.exited) !== 0) throw new Error(`${argv.join(" ")} failed`);
}

/** An agent whose state lies on a file system of its own. */
async function startOn(options: string): Promise<void> {
  agent = await TestAgent.prepare({ storage: 'plugin = "directory"' });
  await mkdir(agent.stateDir);
  await run("mount", "-t", "tmpfs", "-o", `mode=711,${options}`, "tmpfs", agent.stateDir);
  mounted = agent.stateDir;
  await agent.start();
}

interface Reply {
  id: string;
  state: string;
  error: string;
  code: string;
}
const post = (path: string, body: unknown = {}) => agent.json<Reply>("POST", path, body);

async function until(what: string, holds: () => Promise<boolean>, budgetMs: number): Promise<void> {
  const deadline = performance.now() + budgetMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${budgetMs} ms for: ${what}`);
    await Bun.sleep(50);
  }
}

describe.skipIf(!isRoot)("a host without room", () => {
  test("no blocks left: new things are refused, deletes and restarts work", async () => {
    await startOn("size=64m");
    const sandbox = await TestSandbox.create(agent);
    const before = await traceHost(agent);
    const filler = join(agent.stateDir, "filler");
    await writeFile(filler, "");
    await run("sh", "-c", `head -c 100m /dev/zero > ${filler} 2>/dev/null || true`);
    for (const [path, body] of [
      ["/v1/sandboxes", { procbox: {} }],
      [`${sandbox.path}/dry-run`, { command: "true", paths: ["/"] }],
    ] as const) {
      const { status, body: reply } = await post(path, body);
      expect({ path, status, code: reply.code }).toEqual({ path, status: 507, code: "HOST_FULL" });
    }
    expect((await sandbox.run("echo fine")).stdout).toBe("fine\n");
    expect(await traceHost(agent)).toEqual(before);
    await agent.kill9();
    await agent.start();
    expect((await sandbox.run("echo fine")).stdout).toBe("fine\n");
    await sandbox.delete();
    await truncate(filler, 0);
    await until(
      "creates work again",
      async () => (await post("/v1/sandboxes", { procbox: {} })).status === 201,
      10_000,
    );
  }, 60_000);

  test("no inodes left: every failed create says so and leaves nothing", async () => {
    await startOn("size=200m,nr_inodes=100");
    const sandbox = await TestSandbox.create(agent);
    const before = await traceHost(agent);
    await sandbox.run("i=0; while : > f$i; do i=$((i+1)); done 2>/dev/null");
    const statuses: number[] = [];
    // With each file that goes, a create comes one step further.
    for (let spare = 0; spare < 12 && statuses.at(-1) !== 201; spare += 1) {
      const { status, body } = await post("/v1/sandboxes", { procbox: {} });
      statuses.push(status);
      if (status !== 201) expect({ spare, code: body.code }).toEqual({ spare, code: "HOST_FULL" });
      else expect((await agent.json("DELETE", `/v1/sandboxes/${body.id}`)).status).toBe(204);
      expect(await traceHost(agent)).toEqual(before);
      await sandbox.run("for f in f*; do rm $f; break; done");
    }
    expect(statuses.filter((status) => status === 507).length).toBeGreaterThan(2);
    expect(statuses.at(-1)).toBe(201);
    await sandbox.delete();
  }, 60_000);
});

describe.skipIf(!isRoot)("a host that gives no directory", () => {
  test.each([
    [
      "a read-only file system",
      "EROFS",
      (path: string) => mkdir(path).then(() => run("mount", "-t", "tmpfs", "-o", "ro", "tmpfs", path)),
    ],
    ["a file in the way", "ENOTDIR", (path: string) => writeFile(path, "")],
  ] as const)("%s: the start is refused with path and reason", async (_what, reason, prepare) => {
    agent = await TestAgent.prepare();
    await prepare(agent.stateDir);
    try {
      expect(await agent.spawn().exited).toBe(1);
      expect(await agent.log()).toContain(`cannot make the directory ${agent.stateDir}/instances (${reason})`);
    } finally {
      Bun.spawnSync(["umount", agent.stateDir], { stderr: "ignore" });
      await rm(agent.stateDir, { recursive: true, force: true });
    }
  });
});

describe.skipIf(!isRoot)("an ordinary user's agent, whose workspaces have no hard cap", () => {
  const FILL = "for i in 1 2 3 4 5 6 7 8 9; do head -c 10m /dev/zero > big$i; sleep 0.2; done; sleep 20";

  test("a sandbox over its limit is stopped with the reason, can be started and emptied", async () => {
    agent = await TestAgent.start({ uid: ORDINARY_UID, procbox: "max_workspace_mib = 32" });
    const [sandbox, neighbour] = [await TestSandbox.create(agent), await TestSandbox.create(agent)];
    await sandbox.write("kept", "kept");
    const filling = agent.json("POST", `${sandbox.path}/process`, { command: FILL, timeout_seconds: 30 });
    const record = async () => (await agent.json<Reply>("GET", sandbox.path)).body;
    await until("the sandbox is stopped", async () => (await record()).state === "stopped", 15_000);
    expect((await record()).error).toMatch(/^the workspace holds \d+ MiB; its limit is 32 MiB$/);
    await filling;
    const refused = await post(`${sandbox.path}/process`, { command: "true" });
    expect({ status: refused.status, error: refused.body.error }).toMatchObject({
      status: 412,
      error: expect.stringContaining("its limit is 32 MiB"),
    });
    expect((await neighbour.run("echo fine")).stdout).toBe("fine\n");

    expect((await post(`${sandbox.path}/start`)).status).toBe(200);
    const usedMib = Number((await sandbox.run("du -sm . | cut -f1")).stdout);
    expect(usedMib).toBeLessThanOrEqual(32 + 64);
    // Longer than the storage takes to look again.
    await Bun.sleep(6_000);
    expect((await record()).state).toBe("ready");
    await sandbox.run("rm big*");
    expect(await sandbox.read("kept")).toBe("kept");
    await sandbox.delete();
    await neighbour.delete();
  }, 60_000);

  test("a dry-run over the limit ends as full, and its sandbox goes on", async () => {
    agent = await TestAgent.start({ uid: ORDINARY_UID, procbox: "max_workspace_mib = 32" });
    const sandbox = await TestSandbox.create(agent);
    const dry = await post(`${sandbox.path}/dry-run`, { command: FILL, paths: ["/"], timeout_seconds: 30 });
    expect({ status: dry.status, code: dry.body.code }).toEqual({ status: 413, code: "WORKSPACE_FULL" });
    expect((await sandbox.run("ls")).stdout).toBe("");
    await sandbox.delete();
  }, 60_000);
});
