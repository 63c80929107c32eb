// What outlives what: the agent killed in the middle of a command, supervisor and init killed, two agents on one state,
// and the agent killed at every step of its journal.
import { afterEach, describe, expect, test } from "bun:test";
import { Database } from "bun:sqlite";
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { TestAgent } from "../harness/agent.ts";
import { traceHost, UIDS_OF_AGENT } from "../harness/host.ts";
import { TestSandbox } from "../harness/sandbox.ts";
import { CRASH_POINTS } from "../../src/sandbox/crash-points.ts";

const isRoot = process.getuid?.() === 0;
const ORDINARY_UID = 65_533;
const agents: TestAgent[] = [];
afterEach(async () => {
  for (const agent of agents.splice(0)) await agent.dispose();
});

async function startAgent(options: Parameters<typeof TestAgent.start>[0] = {}): Promise<TestAgent> {
  const agent = await TestAgent.start(options);
  agents.push(agent);
  return agent;
}

/** Host pids of processes whose uid belongs to the agent's sandboxes, with their command. */
async function sandboxProcesses(
  agent: TestAgent,
): Promise<{ pid: number; command: string; uid: number; ppid: number }[]> {
  const found = [];
  for (const name of await readdir("/proc")) {
    if (!/^\d+$/.test(name)) continue;
    const status = await readFile(`/proc/${name}/status`, "latin1").catch(() => "");
    const uid = Number(/^Uid:\t(\d+)/m.exec(status)?.[1] ?? -1);
    if (uid < agent.uidBase || uid >= agent.uidBase + UIDS_OF_AGENT || /^State:\tZ/m.test(status)) continue;
    const ppid = Number(/^PPid:\t(\d+)/m.exec(status)?.[1] ?? 0);
    const command = (await readFile(`/proc/${name}/cmdline`, "latin1").catch(() => "")).replaceAll("\0", " ").trim();
    found.push({ pid: Number(name), command, uid, ppid });
  }
  return found;
}

/** One that has gone with another that was killed before it is no fault. */
function kill9(pid: number): void {
  try {
    process.kill(pid, "SIGKILL");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "ESRCH") throw error;
  }
}

async function uidOf(agent: TestAgent, id: string): Promise<number> {
  const marker = await readFile(`${agent.stateDir}/instances/${id}/procbox.json`, "utf8");
  return (JSON.parse(marker) as { uid: number }).uid;
}

async function until(what: string, holds: () => Promise<boolean>, budgetMs = 10_000): Promise<void> {
  const deadline = performance.now() + budgetMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${budgetMs} ms for: ${what}`);
    await Bun.sleep(20);
  }
}

async function stateOf(agent: TestAgent, id: string): Promise<string> {
  return String((await agent.json("GET", `/v1/sandboxes/${id}`)).body.state);
}

describe.skipIf(!isRoot)("survival", () => {
  test("kill -9 of the agent in the middle of a command: sandbox and command are there", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write("before.txt", "before");
    const cut = sandbox
      .run("for i in 1 2 3 4 5 6 7 8; do echo $i >> ticks; sleep 0.25; done; echo end >> ticks", 30)
      .then(
        () => "answered",
        () => "cut",
      );
    await until("the command runs", async () => (await sandbox.read("ticks").catch(() => "")) !== "");
    await agent.kill9();
    expect(await cut).toBe("cut");
    await agent.start();
    expect(await stateOf(agent, sandbox.id)).toBe("ready");
    expect(await sandbox.read("before.txt")).toBe("before");
    await until("the command finishes", async () => (await sandbox.read("ticks")).endsWith("end\n"));
    expect((await sandbox.read("ticks")).trim().split("\n")).toEqual(["1", "2", "3", "4", "5", "6", "7", "8", "end"]);
    await sandbox.delete();
  }, 60_000);

  test("graceful stop leaves sandboxes running, and the next agent adopts them", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    await sandbox.baseline(["/"]);
    await sandbox.run("echo x > x");
    expect(await agent.stop()).toBe(0);
    expect((await sandboxProcesses(agent)).length).toBeGreaterThan(0);
    await agent.start();
    expect((await sandbox.changes()).added).toEqual(["/x"]);
    await sandbox.delete();
    expect(await sandboxProcesses(agent)).toEqual([]);
  }, 60_000);

  test("a reboot: run directory, mounts and processes gone; sandboxes are stopped and start again", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write("f", "kept");
    await sandbox.baseline(["/"]);
    await sandbox.run("echo x > new");
    await agent.kill9();
    for (const { pid } of await sandboxProcesses(agent)) kill9(pid);
    await until("the processes are gone", async () => (await sandboxProcesses(agent)).length === 0);
    Bun.spawnSync(["umount", join(agent.stateDir, "pool")], { stderr: "ignore" });
    await rm(agent.runDir, { recursive: true });
    const database = new Database(join(agent.stateDir, "agent.db"));
    const { body } = database.query("SELECT body FROM records").get() as { body: string };
    const earlier = body.replace(/("bootId":")[^"]*/, "$100000000-0000-4000-8000-000000000000");
    expect(earlier).not.toBe(body);
    database.query("UPDATE records SET body = ?").run(earlier);
    database.close();

    await agent.start();
    expect((await agent.json("GET", sandbox.path)).body).toMatchObject({
      state: "stopped",
      error: "the host was restarted",
    });
    expect((await agent.json("POST", `${sandbox.path}/start`)).status).toBe(200);
    expect(await sandbox.read("f")).toBe("kept");
    expect((await sandbox.changes()).added).toEqual(["/new"]);
    await sandbox.delete();
    expect(await sandboxProcesses(agent)).toEqual([]);
  }, 60_000);

  test("an ordinary user's agent: the main job, and kill -9 in the middle of it", async () => {
    const agent = await startAgent({ uid: ORDINARY_UID });
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write("f", "before");
    await sandbox.baseline(["/"]);
    await sandbox.run("echo after > f; echo x > new");
    const dry = await agent.json("POST", `${sandbox.path}/dry-run`, { command: "rm f", paths: ["/"] });
    expect(dry.body).toMatchObject({ exit_code: 0, changes: { deleted: ["/f"] } });
    const cut = sandbox
      .run("for i in 1 2 3 4 5; do echo $i >> ticks; sleep 0.2; done; echo end >> ticks")
      .catch(() => null);
    await until("the command runs", async () => (await sandbox.read("ticks").catch(() => "")) !== "");
    await agent.kill9();
    expect(await cut).toBeNull();
    await agent.start();
    await until("the command finishes", async () => (await sandbox.read("ticks")).endsWith("end\n"));
    expect(await sandbox.changes()).toMatchObject({ added: ["/new", "/ticks"], modified: ["/f"], deleted: [] });
    await sandbox.delete();
  }, 60_000);

  test("SIGTERM in the middle of a long dry-run ends the agent soon, and the copy with it", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    await sandbox.run("true");
    const before = await traceHost(agent);
    const dry = agent
      .json("POST", `${sandbox.path}/dry-run`, { command: "sleep 60", paths: ["/"], timeout_seconds: 90 })
      .then(({ status, body }) => ({ status, code: body.code }));
    await until("the copy runs", async () => (await sandboxProcesses(agent)).length > before.processes.length + 2);
    const started = performance.now();
    expect(await agent.stop()).toBe(0);
    expect(performance.now() - started).toBeLessThan(8_000);
    expect(await dry).toEqual({ status: 503, code: "SHUTTING_DOWN" });
    await agent.start();
    expect(await traceHost(agent)).toEqual(before);
    await sandbox.delete();
  }, 60_000);

  test("a write that a stop cuts leaves the old content and nothing beside it", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    await sandbox.write("kept", "old");
    const wholeBytes = 45 * 1024 * 1024;
    const content_base64 = Buffer.alloc(wholeBytes, 7).toString("base64");
    let cuts = 0;
    for (let waitMs = 100; waitMs <= 400; waitMs += 50) {
      const writing = agent.json("POST", `${sandbox.path}/fs/write`, { path: "kept", content_base64 });
      await Bun.sleep(waitMs);
      await agent.json("POST", `${sandbox.path}/stop`);
      const answered = (await writing).status === 200;
      expect((await agent.json("POST", `${sandbox.path}/start`)).status).toBe(200);
      expect((await sandbox.run("ls -A")).stdout).toBe("kept\n");
      // A stop between the renaming and the answer loses the answer only: the content is the old or the new, never a part.
      const bytes = Number((await sandbox.run("wc -c < kept")).stdout);
      expect(answered ? [wholeBytes] : ["old".length, wholeBytes]).toContain(bytes);
      if (bytes === "old".length) cuts += 1;
      else await sandbox.write("kept", "old");
    }
    expect(cuts).toBeGreaterThan(0);
    await sandbox.delete();
  }, 60_000);

  test("a command whose sandbox is deleted under it is told so", async () => {
    const agent = await startAgent();
    const sandbox = await TestSandbox.create(agent);
    const running = agent.json("POST", `${sandbox.path}/process`, { command: "sleep 20" });
    await Bun.sleep(200);
    await sandbox.delete();
    expect(await running).toMatchObject({ status: 409, body: { code: "SANDBOX_GONE" } });
  }, 60_000);

  test.each(["supervisor", "init"] as const)(
    "SIGKILL of the %s: seen, stoppable, startable, nothing left",
    async (role) => {
      const agent = await startAgent();
      const sandbox = await TestSandbox.create(agent);
      const other = await TestSandbox.create(agent);
      const marker = await agent.json("GET", `/v1/sandboxes/${sandbox.id}`);
      expect(marker.status).toBe(200);
      const processes = await sandboxProcesses(agent);
      const uid = JSON.parse(await readFile(`${agent.stateDir}/instances/${sandbox.id}/procbox.json`, "utf8"))
        .uid as number;
      const init = processes.find((entry) => entry.uid === uid);
      const victim = role === "init" ? init?.pid : init?.ppid;
      expect(victim).toBeGreaterThan(1);
      const pending = sandbox.run("sleep 20", 30).then(
        () => "answered",
        () => "failed",
      );
      await Bun.sleep(100);
      process.kill(victim as number, "SIGKILL");
      expect(await pending).toBe("failed");
      await until(
        "the end is seen",
        async () => ["stopped", "failed"].includes(await stateOf(agent, sandbox.id)),
        3_000,
      );
      const started = performance.now();
      await agent.json("POST", `/v1/vms/${sandbox.id}/stop`);
      expect(performance.now() - started).toBeLessThan(2_000);
      expect((await other.run("echo fine")).stdout).toBe("fine\n");
      await sandbox.delete();
      await other.delete();
      expect(await sandboxProcesses(agent)).toEqual([]);
    },
    60_000,
  );

  test("a second agent on the same state, or on the same port, refuses to start", async () => {
    const agent = await startAgent();
    const twin = Bun.spawn([...(await twinCommand()), "serve", "--config", agent.configPath], {
      env: { PATH: process.env.PATH ?? "" },
      stdout: "ignore",
      stderr: "pipe",
    });
    expect(await twin.exited).not.toBe(0);
    expect(await new Response(twin.stderr).text()).toMatch(/another agent|in use/i);
    expect((await agent.json("GET", "/healthz")).status).toBe(200);
    const otherDirs = await TestAgent.prepare();
    const config = (await readFile(otherDirs.configPath, "utf8")).replace(
      /listen = .*/,
      `listen = "127.0.0.1:${agent.port}"`,
    );
    await Bun.write(otherDirs.configPath, config);
    const samePort = Bun.spawn([...(await twinCommand()), "serve", "--config", otherDirs.configPath], {
      env: { PATH: process.env.PATH ?? "" },
      stdout: "ignore",
      stderr: "pipe",
    });
    expect(await samePort.exited).not.toBe(0);
    expect(await new Response(samePort.stderr).text()).toMatch(/in use|EADDRINUSE/i);
    const umount = Bun.spawn(["umount", `${otherDirs.stateDir}/pool`], { stderr: "ignore" });
    await umount.exited;
    await Bun.$`rm -rf ${otherDirs.dir}`.quiet();
  }, 60_000);
});

async function twinCommand(): Promise<string[]> {
  const { FLUXCTL } = await import("../harness/agent.ts");
  return [FLUXCTL];
}

/** One life that passes every journalled step, an end of the instance by itself included. */
async function liveOnce(agent: TestAgent): Promise<void> {
  const sandbox = await TestSandbox.create(agent);
  await sandbox.baseline(["/"]);
  await agent.json("POST", `${sandbox.path}/dry-run`, { command: "echo x > y", paths: ["/"] });
  await agent.json("POST", `${sandbox.path}/stop`);
  await agent.json("POST", `${sandbox.path}/start`);
  const uid = await uidOf(agent, sandbox.id);
  for (const { pid } of (await sandboxProcesses(agent)).filter((entry) => entry.uid === uid)) kill9(pid);
  await until("the end is seen", async () => (await stateOf(agent, sandbox.id)) !== "ready");
  await agent.json("POST", `${sandbox.path}/start`);
  await sandbox.delete();
}

/** Steps of networks, of backends that pause or have snapshots, and the unwinding of a failed create; other suites crash there. */
const OTHER_SUITES = /^(network|pause|resume)\.|^create\.(undone|gone)$|^dry-run\.(saved|reverting|reverted)$/;

describe.skipIf(!isRoot)("kill -9 at every journal step", () => {
  test.each(CRASH_POINTS.filter((point) => !OTHER_SUITES.test(point)).map((point) => [point]))(
    "%s",
    async (point) => {
      const agent = await startAgent({ config: "reaper_interval_secs = 1" });
      const settled = await TestSandbox.create(agent);
      await settled.write("f", "settled");
      const before = await traceHost(agent);
      await agent.stop();
      await agent.start({ FLUXVM_TEST_CRASH_AT: point });

      // One life that passes every step; the agent dies at the point, wherever that is.
      const crashed = agent.exited.then(() => "crashed");
      const life = liveOnce(agent).catch(() => undefined);
      const outcome = await Promise.race([crashed, life.then(() => Promise.race([crashed, Bun.sleep(4_000)]))]);
      expect(outcome).toBe("crashed");
      await agent.kill9();
      await agent.start();

      // What is there is whole and usable, or gone; deleting all of it leaves only what was there before.
      const list = await agent.json<{ items: { id: string; state: string }[] }>("GET", "/v1/sandboxes");
      for (const { id, state } of list.body.items) {
        expect(["ready", "stopped", "failed"]).toContain(state);
        if (id === settled.id) continue;
        expect((await agent.json("DELETE", `/v1/sandboxes/${id}`)).status).toBe(204);
      }
      expect(await settled.read("f")).toBe("settled");
      expect((await settled.run("echo ok")).stdout).toBe("ok\n");
      expect(await traceHost(agent)).toEqual(before);
      await settled.delete();
    },
    60_000,
  );
});
