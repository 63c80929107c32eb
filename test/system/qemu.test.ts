// Virtual machines on QEMU through the real agent, emulated where there is no KVM: one machine from its template to its
// removal, with agents that end in between. What counts in its memory tells whether it was put back or begun anew.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { chmod, mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Template } from "../../src/templates/format.ts";
import { TestAgent } from "../harness/agent.ts";
import { type HostTrace, traceHost } from "../harness/host.ts";
import { buildMicro } from "../harness/micro-machine.ts";
import { TestSandbox } from "../harness/sandbox.ts";

setDefaultTimeout(240_000);

const COMMAND_SECONDS = 60;
const FAILED_WITHIN_MS = 2000;
/** How far a clock that was set may be from the host's, whose own seconds are not the guest's. */
const CLOCK_SECONDS = 2;
/** Counts on in memory, ten times a second, when nothing does yet; over as soon as it has begun. */
const COUNTER = `test -s /run/count && exit
setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >/run/n; mv /run/n /run/count; sleep 0.1; done' </dev/null >/dev/null 2>&1 &
until test -s /run/count; do sleep 0.1; done`;

let directory = "";
let template: Template;
let imageHash = "";
let agent: TestAgent;
let before: HostTrace;
let machine: TestSandbox;

beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-qemu-"));
  // The machine's own user reads its kernel and its image.
  await chmod(directory, 0o711);
  template = await buildMicro(directory, "micro");
  imageHash = await hashOf(template.imagePath);
  agent = await TestAgent.start({ sections: `[sandbox]\ntemplates_dir = "${join(directory, "templates")}"` });
  // The pool of the volumes is there from the first sandbox on.
  await (await TestSandbox.create(agent)).delete();
  before = await traceHost(agent);
  machine = await TestSandbox.fromTemplate(agent, "micro");
});
afterAll(async () => {
  await agent?.dispose();
  await rm(directory, { recursive: true });
});

async function hashOf(path: string): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const piece of Bun.file(path).stream()) hasher.update(piece);
  return hasher.digest("hex");
}

async function output(command: string): Promise<string> {
  const { exit_code, stdout, stderr } = await machine.run(command, COMMAND_SECONDS);
  expect([command, exit_code, stderr]).toEqual([command, 0, ""]);
  return stdout;
}

const count = async (): Promise<number> => Number(await output("cat /run/count"));

/** One of the machine's routes; the status and the error code, if any. */
async function call(verb: string, body: Record<string, unknown> = {}): Promise<[number, string | undefined]> {
  const reply = await agent.json<{ code?: string }>("POST", `${machine.path}/${verb}`, body);
  return [reply.status, reply.body.code];
}

async function record(): Promise<{ state: string; error: string | null; pid: number }> {
  return (await agent.json<{ state: string; error: string | null; pid: number }>("GET", machine.path)).body;
}

async function until(what: string, holds: () => Promise<boolean>, budgetMs = 30_000): Promise<void> {
  const deadline = performance.now() + budgetMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${budgetMs} ms for: ${what}`);
    await Bun.sleep(20);
  }
}

async function expectClockOfNow(): Promise<void> {
  const earliest = Date.now() / 1000 - CLOCK_SECONDS;
  expect(Number(await output("date +%s"))).toBeWithin(earliest, Date.now() / 1000 + CLOCK_SECONDS);
}

/** Control groups of a process, as directories. */
async function groupsOf(pid: number): Promise<string[]> {
  const mounts = (await readFile("/proc/self/mountinfo", "utf8"))
    .split("\n")
    .filter((line) => / - cgroup2? /.test(line))
    .map((line) => line.split(" ")[4] ?? "");
  const paths = (await readFile(`/proc/${pid}/cgroup`, "utf8")).trim().split("\n");
  const own = paths.map((line) => line.split(":")[2] ?? "").filter((path) => path.includes("fluxvm.slice"));
  return [...new Set(own)].flatMap((path) => mounts.map((mount) => join(mount, path))).filter((dir) => existsSync(dir));
}

test("runs commands and has files", async () => {
  expect(await output("id -u; readlink /proc/1/exe")).toBe("0\n/usr/sbin/fluxvm-guest-agent\n");
  await machine.write("root/kept", "kept\n");
  expect(await output("cat /root/kept")).toBe("kept\n");
  expect(await machine.read("root/kept")).toBe("kept\n");
});

test("goes on over agents that stop and agents that are killed", async () => {
  const { pid } = await record();
  for (const end of [() => agent.stop(), () => agent.kill9()]) {
    await end();
    await agent.start();
    expect(await record()).toMatchObject({ state: "ready", pid });
    expect(await output("cat /root/kept")).toBe("kept\n");
  }
});

test("tells what changed since its baseline", async () => {
  await machine.baseline(["/root"]);
  await output("echo x >/root/added; echo changed >/root/kept");
  expect(await machine.changes()).toMatchObject({ added: ["/root/added"], modified: ["/root/kept"], deleted: [] });
  await output("rm /root/added; echo kept >/root/kept");
});

test("runs dry as often as asked: memory, disk and clock are as if nothing had happened", async () => {
  await output(COUNTER);
  for (let round = 0; round < 3; round += 1) {
    const counted = await count();
    const command = "echo x >/root/added; rm /root/kept; sleep 4; cat /run/count";
    const reply = await agent.json<Record<string, unknown>>("POST", `${machine.path}/dry-run`, {
      command,
      paths: ["/root"],
      timeout_seconds: COMMAND_SECONDS,
    });
    expect([reply.status, reply.body]).toMatchObject([
      200,
      { reverted_via: "snapshot", changes: { added: ["/root/added"], modified: [], deleted: ["/root/kept"] } },
    ]);
    const undone = Number(reply.body.stdout);
    const back = await count();
    expect(back).toBeWithin(counted, undone);
    await expectClockOfNow();
    expect(await output("ls /root; cat /root/kept")).toBe("kept\nkept\n");
    await until("it counts on", async () => (await count()) > back);
  }
  expect(await record()).toMatchObject({ state: "ready", error: null });
});

test("is restored by a start, and says what a restore needs", async () => {
  const { path } = machine;
  expect(await call("snapshot", { tag: "clean" })).toEqual([200, undefined]);
  const counted = await count();
  await output("echo x >/root/later");
  expect(await call("restore", { tag: "clean" })).toEqual([409, "RESTORE_NEEDS_STOP"]);
  expect(await call("restore", { tag: "none" })).toEqual([404, "SNAPSHOT_NOT_FOUND"]);
  expect(await call("restore", { tag: "../x" })).toEqual([400, "BAD_REQUEST"]);
  await Bun.sleep(2 * CLOCK_SECONDS * 1000);
  expect((await call("stop"))[0]).toBe(200);
  expect(await call("restore", { tag: "clean" })).toEqual([200, undefined]);
  expect(await count()).toBeLessThan(counted + 10 * 2 * CLOCK_SECONDS);
  expect(await output("ls /root")).toBe("kept\n");
  await expectClockOfNow();
  expect((await agent.json("DELETE", `${path}/snapshots/clean`)).status).toBe(204);
});

test("pauses and resumes with everything in it, three times", async () => {
  for (let round = 0; round < 3; round += 1) {
    await output(`echo ${round} >>/root/rounds`);
    expect(await call("pause")).toEqual([200, undefined]);
    expect(await record()).toMatchObject({ state: "paused" });
    expect(await call("resume")).toEqual([200, undefined]);
  }
  expect(await output("cat /root/rounds; rm /root/rounds")).toBe("0\n1\n2\n");
});

test("keeps what was written just before a stop", async () => {
  await output("echo x >/root/f");
  expect((await call("stop"))[0]).toBe(200);
  expect((await call("start"))[0]).toBe(200);
  expect(await output("cat /root/f; rm /root/f")).toBe("x\n");
});

describe("an agent that is killed in the middle of a dry-run", () => {
  test.each(["dry-run.saved", "dry-run.ran", "dry-run.reverting", "dry-run.reverted"])(
    "at %s: the next one puts the machine back",
    async (point) => {
      await output(COUNTER);
      await agent.stop();
      await agent.start({ FLUXVM_TEST_CRASH_AT: point });
      const body = { command: "echo x >/root/added", paths: ["/root"], timeout_seconds: COMMAND_SECONDS };
      const answer = agent.json("POST", `${machine.path}/dry-run`, body).then(
        ({ status }) => status,
        () => "cut",
      );
      expect(await Promise.race([answer, agent.exited.then(() => "cut")])).toBe("cut");
      await agent.kill9();
      await agent.start();
      await until("it is back", async () => (await record()).state === "ready", 60_000);
      expect(await output("ls /root")).toBe("kept\n");
      const counted = await count();
      await until("it counts on", async () => (await count()) > counted);
      expect(await agent.json("GET", `${machine.path}/snapshots`)).toMatchObject({ status: 200, body: { items: [] } });
    },
  );
});

test("whose QEMU is killed has failed at once, and so has what was asked of it", async () => {
  const { pid } = await record();
  const pending = [call("process", { command: "sleep 100" }), call("ports/wait", { port: 80, timeout_seconds: 60 })];
  await until("a command runs", async () => (await record()).state === "running");
  process.kill(pid, "SIGKILL");
  await until("it has failed", async () => (await record()).state === "failed", FAILED_WITHIN_MS);
  for (const [, code] of await Promise.all(pending)) expect(code).toBe("SANDBOX_GONE");
});

test("leaves nothing behind, and its template as it was", async () => {
  expect((await call("start"))[0]).toBe(200);
  const groups = await groupsOf((await record()).pid);
  if (process.getuid?.() === 0) expect(groups).not.toEqual([]);
  await machine.delete();
  expect(await traceHost(agent)).toEqual(before);
  expect(groups.filter((dir) => existsSync(dir))).toEqual([]);
  expect(await hashOf(template.imagePath)).toBe(imageHash);
});
