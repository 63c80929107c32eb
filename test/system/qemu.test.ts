// Virtual machines on QEMU through the real agent, emulated where there is no KVM: one machine from its template to its
// removal, with agents that end in between. What counts in its memory tells whether it was put back or begun anew.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { TestAgent } from "../harness/agent.ts";
import { TestExecution, textOf } from "../harness/execution.ts";
import { type HostTrace, traceHost } from "../harness/host.ts";
import { MachineStation, until } from "../harness/machine-station.ts";
import { TestSandbox } from "../harness/sandbox.ts";

setDefaultTimeout(240_000);

const COMMAND_SECONDS = 60;
/** What a command writes while no agent is there. */
const LINES = 20_000;
const NUMBERS = Array.from({ length: LINES }, (_, at) => `${at + 1}\n`).join("");
const AWAY_MS = 4000;
const FAILED_WITHIN_MS = 2000;
/** How far a clock that was set may be from the host's, whose own seconds are not the guest's. */
const CLOCK_SECONDS = 2;
/** Counts on in memory, ten times a second, when nothing does yet; over as soon as it has begun. */
const COUNTER = `test -s /run/count && exit
setsid sh -c 'i=0; while :; do i=$((i+1)); echo $i >/run/n; mv /run/n /run/count; sleep 0.1; done' </dev/null >/dev/null 2>&1 &
until test -s /run/count; do sleep 0.1; done`;

let station: MachineStation;
let agent: TestAgent;
let machine: TestSandbox;
let imageHash = "";
let before: HostTrace;

beforeAll(async () => {
  station = await MachineStation.start({}, async (agent) => {
    // The pool of the volumes is there from the first sandbox on.
    await (await TestSandbox.create(agent)).delete();
    before = await traceHost(agent);
  });
  ({ agent, machine } = station);
  imageHash = await hashOf(station.template.imagePath);
});
afterAll(() => station?.[Symbol.asyncDispose]());

const output = (command: string): Promise<string> => station.output(command);
const call = (verb: string, body?: Record<string, unknown>) => station.call(verb, body);
const record = () => station.record();

async function hashOf(path: string): Promise<string> {
  const hasher = new Bun.CryptoHasher("sha256");
  for await (const piece of Bun.file(path).stream()) hasher.update(piece);
  return hasher.digest("hex");
}

const count = async (): Promise<number> => Number(await output("cat /run/count"));

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

test("goes on, with what runs in it, over agents that stop and agents that are killed", async () => {
  const { pid } = await record();
  const echo = await TestExecution.start(machine, {
    command: "while read line; do echo $line; done; exit 7",
    stdin: true,
  });
  let sent = "";
  const write = async (text: string, eof = false) => {
    const reply = await echo.stdin(sent.length, text, eof);
    expect(reply).toMatchObject({ status: 200, body: { bytes_written: sent.length + text.length, closed: eof } });
    sent += text;
  };
  for (const end of [() => agent.stop(), () => agent.kill9()]) {
    await write("before\n");
    // One ends while no agent is there, with more output than fits a pipe, and one just before.
    const away = await TestExecution.start(machine, { command: `sleep 2; seq ${LINES}; echo last >&2; exit 5` });
    const quick = await TestExecution.start(machine, { command: "echo quick; exit 3" });
    await end();
    await Bun.sleep(AWAY_MS);
    await agent.start();
    expect(await record()).toMatchObject({ state: "running", pid });
    expect(await away.wait()).toMatchObject({ status: "exited", exit_code: 5, error: null });
    const frames = await away.frames();
    expect(textOf(frames, "stdout")).toBe(NUMBERS);
    expect(textOf(frames, "stderr")).toBe("last\n");
    expect(await quick.wait()).toMatchObject({ status: "exited", exit_code: 3 });
    expect(await quick.output()).toBe("quick\n");
    await write("after\n");
  }
  await write("end\n", true);
  expect(await echo.wait()).toMatchObject({ status: "exited", exit_code: 7 });
  expect(await echo.output()).toBe(sent);
  // Who was not answered sends it again: all of it was taken, and there is nothing new.
  expect(await echo.stdin(sent.length - 4, "end\n", true)).toMatchObject({ status: 200 });
  expect(await echo.stdin(sent.length, "more\n")).toMatchObject({ status: 412, body: { code: "EXECUTION_EXITED" } });
  expect(await record()).toMatchObject({ state: "ready", pid });
  expect(await output("cat /root/kept")).toBe("kept\n");
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

test("E7: pauses and resumes with every file in it, three times, and knows what time it is", async () => {
  const contents = ["one\n", "two\n".repeat(50_000), ""];
  for (const [round, content] of contents.entries()) {
    await machine.write(`root/round-${round}`, content);
    expect(await call("pause")).toEqual([200, undefined]);
    expect(await record()).toMatchObject({ state: "paused" });
    await Bun.sleep(2 * CLOCK_SECONDS * 1000);
    expect(await call("resume")).toEqual([200, undefined]);
    await expectClockOfNow();
    for (const known of contents.keys()) {
      if (known <= round) expect(await machine.read(`root/round-${known}`)).toBe(contents[known] ?? "");
    }
  }
  await output("rm /root/round-*");
});

test("E11: keeps what was written just before a stop", async () => {
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
  expect(await hashOf(station.template.imagePath)).toBe(imageHash);
});
