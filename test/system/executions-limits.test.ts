// Executions at their bounds: as many as there may be, a disk that is full, many readers of one, and a supervisor that is
// killed. What cannot be kept is seen to be missing, and the agent goes on.
import { afterEach, expect, test } from "bun:test";
import { mkdir, readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../../src/config/limits.ts";
import { TestAgent } from "../harness/agent.ts";
import { framesOf, type StreamFrame, TestExecution } from "../harness/execution.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const MIB = 1024 * 1024;
const RUNNING_MAX = 256;
const KEPT_MAX = 1000;
const WRITERS_MAX = 16;
const TEST_MS = 120_000;
const cleanups: (() => Promise<unknown>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function world(): Promise<{ agent: TestAgent; sandbox: TestSandbox }> {
  const agent = await TestAgent.start();
  cleanups.push(() => agent.dispose());
  return { agent, sandbox: await TestSandbox.create(agent, { max_processes: 1024 }) };
}

async function run(...argv: string[]): Promise<void> {
  const child = Bun.spawn(argv, { stderr: "pipe" });
  if ((await child.exited) !== 0) throw new Error(`${argv.join(" ")}: ${await new Response(child.stderr).text()}`);
}

const countOf = async ({ agent, path }: TestSandbox): Promise<number> =>
  (await agent.json<{ items: unknown[] }>("GET", `${path}/executions`)).body.items.length;

async function until(what: string, holds: () => Promise<boolean>): Promise<void> {
  for (const deadline = performance.now() + 20_000; !(await holds()); await Bun.sleep(50)) {
    if (performance.now() > deadline) throw new Error(`never: ${what}`);
  }
}

/** Reads to the end, and says how many bytes came and how many are missing. */
async function readAll(response: Response): Promise<{ bytes: number; missing: number; last: StreamFrame | undefined }> {
  let [bytes, missing, end] = [0, 0, 0];
  let last: StreamFrame | undefined;
  for await (const frame of framesOf(response)) {
    last = frame;
    if (frame.type !== "output") continue;
    missing += (frame.offset ?? 0) - end;
    bytes += frame.data?.length ?? 0;
    end = (frame.offset ?? 0) + (frame.data?.length ?? 0);
  }
  return { bytes, missing, last };
}

test.skipIf(!isRoot)(
  "as many run and are kept as may be, also by the next agent",
  async () => {
    const { agent, sandbox } = await world();
    const start = (id: string, command: string) => TestExecution.start(sandbox, { id, command, stdin: true });
    const running = await Promise.all(
      Array.from({ length: RUNNING_MAX }, (_, n) => start(`r${n}`, "head -c 100000 /dev/zero; read line; echo $line")),
    );
    const refused = await agent.json("POST", `${sandbox.path}/executions`, { id: "one-more", command: "true" });
    expect([refused.status, refused.body.code]).toEqual([409, "SANDBOX_BUSY"]);
    await agent.kill9();
    await agent.start();
    expect(await countOf(sandbox)).toBe(RUNNING_MAX);
    await Promise.all(
      running.map(async (execution, n) => {
        await execution.stdin(0, `line ${n}\n`);
        const { bytes, missing, last } = await readAll(await execution.stream());
        expect([bytes, missing, last?.exit_code]).toEqual([100_000 + `line ${n}\n`.length, 0, 0]);
      }),
    );
    let later = 0;
    for (; later + RUNNING_MAX < KEPT_MAX + 30; later += 30) {
      await Promise.all(
        Array.from({ length: 30 }, async (_, k) => {
          const execution = await start(`k${later + k}`, "head -c 20000 /dev/zero");
          expect((await readAll(await execution.stream())).bytes).toBe(20_000);
        }),
      );
    }
    expect(await countOf(sandbox)).toBe(KEPT_MAX);
    await agent.stop();
    const began = performance.now();
    await agent.start();
    console.log(`an agent finds ${KEPT_MAX} executions and answers after ${Math.round(performance.now() - began)} ms`);
    expect(await countOf(sandbox)).toBe(KEPT_MAX);
    const { items } = (await agent.json<{ items: { id: string }[] }>("GET", `${sandbox.path}/executions`)).body;
    // Those that ended first were forgotten, so all of these are there.
    expect(items.filter(({ id }) => id.startsWith("k"))).toHaveLength(later);
    expect((await (await start("new", "echo new")).output()).trim()).toBe("new");
  },
  TEST_MS,
);

test.skipIf(!isRoot)(
  "on a disk that is full, what can be held up waits, and what cannot loses bytes that are seen to be missing",
  async () => {
    const { agent, sandbox } = await world();
    const directory = join(agent.stateDir, "instances", sandbox.id, "exec");
    await mkdir(directory, { recursive: true });
    const diskBytes = 1536 * 1024;
    await run("mount", "-t", "tmpfs", "-o", `size=${diskBytes}`, "executions", directory);
    cleanups.push(() => run("umount", "-l", directory));
    const bytes = 24 * MIB;
    const command = `head -c ${bytes} /dev/zero`;
    const held = await TestExecution.start(sandbox, { id: "held", command, overflow: "block" });
    const free = await TestExecution.start(sandbox, { id: "free", command });
    const reading = readAll(await held.stream("role=starter"));
    expect((await free.wait()).exit_code).toBe(0);
    expect((await held.wait(1500)).status).toBe("running");
    // What is not stored is bounded by what the guest may send ahead.
    expect((await held.view()).stdout_len).toBeLessThanOrEqual(limits.wideStreamCreditBytes + diskBytes);
    // The agent says so, and serves everything else.
    expect(await agent.log()).toContain("output cannot be stored");
    expect((await agent.json("GET", sandbox.path)).status).toBe(200);
    await run("dd", "if=/dev/zero", `of=${directory}/filler`, "bs=4k", "status=none").catch(() => undefined);
    // More than may be left of a page that is there already.
    const long = { id: "refused", command: `true ${"x".repeat(8192)}` };
    const refused = await agent.json("POST", `${sandbox.path}/executions`, long);
    expect([refused.status, refused.body.code]).toEqual([507, "HOST_FULL"]);
    await run("rm", `${directory}/filler`);
    await run("mount", "-o", "remount,size=64m", directory);
    expect(await reading).toMatchObject({ bytes, missing: 0, last: { type: "exited", exit_code: 0 } });
    const lossy = await readAll(await free.stream());
    expect(lossy.bytes + lossy.missing).toBe(bytes);
    expect(lossy.missing).toBeGreaterThan(8 * MIB);
    expect(lossy.bytes).toBeGreaterThanOrEqual(8 * MIB);
    expect(lossy.last).toMatchObject({ type: "exited", exit_code: 0 });
    expect((await (await TestExecution.start(sandbox, { id: "after", command: "echo after" })).output()).trim()).toBe(
      "after",
    );
  },
  TEST_MS,
);

test.skipIf(!isRoot)(
  "every one of many readers gets every byte",
  async () => {
    const { sandbox } = await world();
    const command = `read line; head -c ${MIB} /dev/zero; read line`;
    const execution = await TestExecution.start(sandbox, { id: "read", command, stdin: true });
    // A client of this runtime keeps no more than 256 connections.
    const responses = await Promise.all(Array.from({ length: 200 }, () => execution.stream()));
    const reading = responses.map(readAll);
    await execution.stdin(0, "\n\n");
    for (const { bytes, missing, last } of await Promise.all(reading)) {
      expect([bytes, missing, last?.type]).toEqual([MIB, 0, "exited"]);
    }
  },
  TEST_MS,
);

test.skipIf(!isRoot)(
  "writers that leave a process that does not read make place for others",
  async () => {
    const { sandbox } = await world();
    const command = "while [ ! -e go ]; do sleep 0.05; done; exec wc -c";
    const execution = await TestExecution.start(sandbox, { id: "deaf", command, stdin: true });
    const taken = async () => (await execution.view()).stdin.bytes_written;
    const put = (offset: number, body: Uint8Array, signal: AbortSignal) =>
      sandbox.agent.fetch("PUT", `${execution.path}/stdin?offset=${offset}`, { body, signal }).then(
        () => "taken",
        () => "left",
      );
    // What the guest and the pipe take for a process that does not read.
    const filling = new AbortController();
    const filled = put(0, new Uint8Array(4 * MIB), filling.signal);
    await Bun.sleep(1000);
    filling.abort();
    expect(await filled).toBe("left");
    await until("the guest has been asked", async () => (await taken()) > MIB);
    const full = await taken();
    expect(full).toBeLessThan(2 * MIB);
    const writers = Array.from({ length: WRITERS_MAX }, () => new AbortController());
    const waiting = writers.map(({ signal }) => put(full, new Uint8Array(100), signal));
    await until("the writers wait", async () => (await execution.stdin(0, "x")).status === 409);
    for (const writer of writers) writer.abort();
    expect(await Promise.all(waiting)).toEqual(writers.map(() => "left"));
    const last = (async () => {
      for (;;) {
        const { status, body } = await execution.stdin(full, "the last", true);
        if (status === 200) return body;
        expect([status, body.code]).toEqual([409, "SANDBOX_BUSY"]);
        await Bun.sleep(20);
      }
    })();
    await Bun.sleep(300);
    expect((await execution.view()).stdin).toEqual({ bytes_written: full, closed: false });
    await sandbox.write("go", "");
    expect(await last).toEqual({ bytes_written: full + 8, closed: true });
    expect((await execution.output()).trim()).toBe(String(full + 8));
  },
  TEST_MS,
);

test.skipIf(!isRoot)(
  "a supervisor that is killed ends its executions, whose output stays readable, also by the next agent",
  async () => {
    const { agent, sandbox } = await world();
    const execution = await TestExecution.start(sandbox, { id: "e", command: "head -c 300000 /dev/zero; sleep 60" });
    const done = await TestExecution.start(sandbox, { id: "done", command: "echo done" });
    expect((await done.wait()).exit_code).toBe(0);
    const reading = readAll(await execution.stream());
    await until("the output is here", async () => (await execution.view()).stdout_len === 300_000);
    for (const pid of await readdir("/proc")) {
      if (!/^\d+$/.test(pid)) continue;
      const command = (await readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "")).split("\0");
      const isOurs = command[0]?.includes("fluxvm-guest-agent") && command.some((word) => word.includes(agent.dir));
      if (isOurs) process.kill(Number(pid), "SIGKILL");
    }
    expect(await reading).toMatchObject({ bytes: 300_000, missing: 0, last: { type: "error", code: "SANDBOX_GONE" } });
    const check = async (): Promise<void> => {
      expect(await execution.view()).toMatchObject({ status: "exited", exit_code: null, error: "sandbox stopped" });
      expect(await readAll(await execution.stream())).toMatchObject({ bytes: 300_000, last: { code: "SANDBOX_GONE" } });
      expect((await done.output()).trim()).toBe("done");
    };
    await check();
    await agent.stop();
    await agent.start();
    await check();
  },
  TEST_MS,
);
