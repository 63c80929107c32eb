// Executions on real process sandboxes: what a client is promised of output, input, signals and ends, and that neither
// a lost client nor a lost agent costs a byte.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { TestAgent } from "../harness/agent.ts";
import { type StreamFrame, framesOf, MSGPACK_STREAM, TestExecution, textOf } from "../harness/execution.ts";
import { traceHost } from "../harness/host.ts";
import { TestSandbox } from "../harness/sandbox.ts";

const isRoot = process.getuid?.() === 0;
const MIB = 1024 * 1024;
/** At full length more than a connection may be idle. */
const SILENCE_SECONDS = process.env.FLUXVM_TEST_FULL === "1" ? 75 : 3;
/** Less than what helps somebody who waits for ever: a reader may be missed for longer, and a silent guest may be, too. */
const STEP_MAX_MS = 25_000;

async function until(what: string, holds: () => Promise<boolean>, budgetMs = 10_000): Promise<void> {
  const deadline = performance.now() + budgetMs;
  while (!(await holds())) {
    if (performance.now() > deadline) throw new Error(`waited ${budgetMs} ms for: ${what}`);
    await Bun.sleep(10);
  }
}

/** Waits for a step of a test; what `tell` says is told when it takes too long. */
async function step<T>(what: string, work: Promise<T>, tell: () => Promise<string>): Promise<T> {
  const tooLong = Promise.withResolvers<never>();
  const timer = setTimeout(async () => {
    tooLong.reject(new Error(`${what} takes longer than ${STEP_MAX_MS} ms\n${await tell().catch(String)}`));
  }, STEP_MAX_MS);
  try {
    return await Promise.race([work, tooLong.promise]);
  } finally {
    clearTimeout(timer);
  }
}

/** What `openssl` makes of a key: a megabyte takes it a few milliseconds, and every byte tells its place. */
const noise = (key: string, bytes: number): string =>
  `openssl enc -aes-128-ctr -K ${key} -iv 00 -in /dev/zero 2>/dev/null | head -c ${bytes}`;

function noiseHash(key: string, bytes: number): string {
  const run = Bun.spawnSync(["/bin/sh", "-c", `${noise(key, bytes)} | sha256sum`]);
  return run.stdout.toString().split(" ")[0] ?? "";
}

/** The frames of one output must follow each other without a gap; their bytes' hash. */
function hashOf(frames: readonly StreamFrame[], channel: string, from = 0): { hash: string; end: number } {
  const hash = new Bun.CryptoHasher("sha256");
  let end = from;
  for (const frame of frames) {
    if (frame.channel !== channel || frame.data === undefined) continue;
    expect(frame.offset).toBe(end);
    hash.update(frame.data);
    end += frame.data.length;
  }
  return { hash: hash.digest("hex"), end };
}

describe.skipIf(!isRoot)("executions", () => {
  let agent: TestAgent;
  let sandbox: TestSandbox;
  beforeAll(async () => {
    agent = await TestAgent.start();
  }, 60_000);
  afterAll(async () => {
    await agent.dispose();
  });
  const fresh = async (): Promise<void> => {
    sandbox = await TestSandbox.create(agent);
  };
  afterEach(async () => {
    await sandbox.delete();
  });
  const start = (body: Record<string, unknown>): Promise<TestExecution> => TestExecution.start(sandbox, body);
  const refused = async (body: Record<string, unknown>) =>
    await agent.json<{ code: string }>("POST", `${sandbox.path}/executions`, body);

  test("45: output beyond the ring begins behind what went", async () => {
    await fresh();
    const execution = await start({ command: `head -c ${8 * MIB + 4} /dev/zero` });
    await until("all of it is here", async () => (await execution.view()).stdout_len === 8 * MIB + 4);
    const outputs = (await execution.frames()).filter(({ type }) => type === "output");
    expect(outputs[0]).toMatchObject({ channel: "stdout", offset: 4 });
    expect(hashOf(outputs, "stdout", 4).end).toBe(8 * MIB + 4);
  }, 30_000);

  test("46: replay from offsets, then live, then the exit, exactly once and last", async () => {
    await fresh();
    const execution = await start({
      command: "printf out-data; printf err >&2; read go; printf !; exit 7",
      stdin: true,
    });
    await until("the output is here", async () => (await execution.view()).stderr_len === 3);
    const reading = execution.frames("stdout_offset=2&stderr_offset=0");
    await Bun.sleep(20);
    await execution.stdin(0, "\n");
    const frames = await reading;
    expect(frames[0]).toMatchObject({ channel: "stdout", offset: 2 });
    expect(frames[1]).toMatchObject({ channel: "stderr", offset: 0 });
    expect(frames[2]).toMatchObject({ channel: "stdout", offset: 8 });
    expect(textOf(frames, "stdout")).toBe("t-data!");
    expect(frames.slice(3)).toMatchObject([{ type: "exited", exit_code: 7, timed_out: false, output_open: false }]);
    expect(await execution.frames("stdout_offset=9&stderr_offset=3")).toMatchObject([{ type: "exited", exit_code: 7 }]);
  });

  test("started with a stream, in one round trip", async () => {
    await fresh();
    const response = await agent.fetch("POST", `${sandbox.path}/executions`, {
      headers: { accept: MSGPACK_STREAM, "content-type": "application/json" },
      body: JSON.stringify({ argv: ["/bin/sh", "-c", noise("01", 20 * MIB)] }),
    });
    expect(response.status).toBe(201);
    const frames = await Array.fromAsync(framesOf(response));
    expect(frames[0]?.type).toBe("started");
    expect(frames.at(-1)).toMatchObject({ type: "exited", exit_code: 0 });
    expect(hashOf(frames, "stdout")).toEqual({ hash: noiseHash("01", 20 * MIB), end: 20 * MIB });
  }, 30_000);

  test("47: a client that leaves at any byte and comes back has every byte once", async () => {
    await fresh();
    const bytes = 12 * MIB;
    const execution = await start({ command: noise("02", bytes), overflow: "block" });
    const hash = new Bun.CryptoHasher("sha256");
    let end = 0;
    for (let attach = 0; end < bytes; attach++) {
      const leave = new AbortController();
      const response = await execution.stream(`stdout_offset=${end}&role=starter`, leave.signal);
      let taken = 0;
      for await (const frame of framesOf(response)) {
        if (frame.data === undefined) continue;
        expect(frame.offset).toBe(end);
        hash.update(frame.data);
        end += frame.data.length;
        taken += frame.data.length;
        if (taken > 300_000 * (attach + 1)) break;
      }
      leave.abort();
    }
    expect(hash.digest("hex")).toBe(noiseHash("02", bytes));
  }, 30_000);

  test("48, 49, 50: input is taken once, whatever is sent again; a gap is refused with the place to go on", async () => {
    await fresh();
    const execution = await start({ command: "cat", stdin: true });
    expect((await execution.stdin(0, "hello")).body).toMatchObject({ bytes_written: 5, closed: false });
    expect((await execution.stdin(0, "hello")).body).toMatchObject({ bytes_written: 5, closed: false });
    expect((await execution.stdin(3, "lo world")).body).toMatchObject({ bytes_written: 11, closed: false });
    expect(await execution.stdin(99, "x")).toMatchObject({
      status: 416,
      body: { code: "STDIN_GAP", details: { accepted: 11 } },
    });
    const status = await agent.json("GET", `${execution.path}/stdin`);
    expect(status.body).toMatchObject({ bytes_written: 11, closed: false });
    expect((await execution.stdin(11, "!", true)).body).toMatchObject({ bytes_written: 12, closed: true });
    await execution.wait();
    expect(await execution.output()).toBe("hello world!");
  });

  test("51: input that is closed takes duplicates and nothing new", async () => {
    await fresh();
    const execution = await start({ command: "sleep 20", stdin: true });
    await execution.stdin(0, "abc", true);
    expect(await execution.stdin(0, "abc")).toMatchObject({ status: 200, body: { bytes_written: 3, closed: true } });
    expect(await execution.stdin(3, "d")).toMatchObject({ status: 400, body: { code: "STDIN_CLOSED" } });
  });

  test("more input than the pipe and the buffer hold waits for the process and comes through whole", async () => {
    await fresh();
    const execution = await start({ command: "sleep 0.5; sha256sum", stdin: true });
    const data = crypto.getRandomValues(Buffer.alloc(5 * MIB).subarray(0, 65_536));
    const whole = Buffer.concat(Array.from({ length: 80 }, () => data));
    expect((await execution.stdin(0, whole, true)).body).toMatchObject({ bytes_written: 5 * MIB, closed: true });
    await execution.wait();
    expect((await execution.output()).split(" ")[0]).toBe(new Bun.CryptoHasher("sha256").update(whole).digest("hex"));
  });

  test("53: without input a command reads its end at once", async () => {
    await fresh();
    const began = performance.now();
    const execution = await start({ command: "cat; echo end" });
    expect(await execution.wait()).toMatchObject({ status: "exited", exit_code: 0 });
    expect(performance.now() - began).toBeLessThan(1_000);
    expect(await execution.output()).toBe("end\n");
  });

  test("55, 56: a signal that there is reaches the whole group", async () => {
    await fresh();
    const command = "trap 'echo parent; exit 3' TERM; (trap 'echo child; exit' TERM; sleep 20 & wait) & wait; wait";
    const execution = await start({ command });
    await Bun.sleep(100);
    for (const signal of [0, 65]) {
      expect((await execution.call("POST", "signal", { signal })).status).toBe(400);
    }
    expect((await execution.call("POST", "signal", { signal: "TERM" })).status).toBe(200);
    expect(await execution.wait()).toMatchObject({ exit_code: 3 });
    await until("both have said so", async () => (await execution.view()).stdout_len === 13);
    expect((await execution.output()).split("\n").sort()).toEqual(["", "child", "parent"]);
  });

  test("54, 57: what has exited takes no signal, input or size, and what has no terminal never a size", async () => {
    await fresh();
    const plain = await start({ command: "sleep 20", stdin: true });
    const size = { cols: 80, rows: 24 };
    const noTerminal = { status: 400, body: { code: "TTY_REQUIRED" } };
    expect(await plain.call("POST", "resize", size)).toMatchObject(noTerminal);
    await plain.call("POST", "signal", { signal: "KILL" });
    const terminal = await start({ command: "exit 0", tty: size });
    for (const execution of [plain, terminal]) {
      await execution.wait();
      const exited = { status: 412, body: { code: "EXECUTION_EXITED" } };
      expect(await execution.call("POST", "signal", { signal: 15 })).toMatchObject(exited);
      expect(await execution.stdin(0, "x")).toMatchObject(exited);
      const resized = execution === terminal ? exited : noTerminal;
      expect(await execution.call("POST", "resize", size)).toMatchObject(resized);
    }
  });

  test("52: a terminal: its size, its signals, its raw bytes, and no end of input", async () => {
    await fresh();
    const execution = await start({
      command: "stty -echo; tty > name; stty size; cat; stty size",
      tty: { cols: 100, rows: 30 },
    });
    await until("the size is told", async () => (await execution.view()).stdout_len > 0);
    expect(await execution.stdin(0, "", true)).toMatchObject({ status: 400, body: { code: "BAD_REQUEST" } });
    expect((await execution.call("POST", "resize", { cols: 81, rows: 25 })).status).toBe(200);
    expect((await execution.stdin(0, "line\n\u0004")).body).toMatchObject({ bytes_written: 6, closed: false });
    expect(await execution.wait()).toMatchObject({ exit_code: 0 });
    const frames = await execution.frames();
    expect(textOf(frames, "pty")).toBe("30 100\r\nline\r\n25 81\r\n");
    expect(await sandbox.read("name")).toStartWith("/dev/pts/");
    const interrupted = await start({ argv: ["/bin/sleep", "30"], tty: { cols: 80, rows: 24 } });
    await interrupted.stdin(0, "\u0003");
    expect(await interrupted.wait()).toMatchObject({ signal: 2 });
  }, 30_000);

  test("58: waiting: at once, for a while, and woken by the exit itself", async () => {
    await fresh();
    const execution = await start({ command: "sleep 30 & sleep 30" });
    const waits = async (timeoutMs: number): Promise<number> => {
      const began = performance.now();
      expect((await execution.wait(timeoutMs)).status).toBe("running");
      return performance.now() - began;
    };
    expect(await waits(0)).toBeLessThan(500);
    expect(await waits(20)).toBeWithin(19, 500);
    const waiting = execution.wait(20_000);
    await Bun.sleep(50);
    const began = performance.now();
    await execution.call("POST", "signal", { signal: "KILL" });
    expect(await waiting).toMatchObject({ status: "exited", signal: 9, exit_code: null });
    expect(performance.now() - began).toBeLessThan(500);
  });

  test("59, 60, 61: the same id and command is one process, another command a conflict, a failed start no obstacle", async () => {
    await fresh();
    const body = { id: "same", command: "echo x >> ran; sleep 5" };
    const replies = await Promise.all(Array.from({ length: 8 }, () => refused(body)));
    expect(replies.map(({ status }) => status).sort()).toEqual([200, 200, 200, 200, 200, 200, 200, 201]);
    const started = (reply: (typeof replies)[number]) => (reply.body as unknown as { started_at: string }).started_at;
    expect(new Set(replies.map(started)).size).toBe(1);
    expect(await refused({ ...body, command: "true" })).toMatchObject({
      status: 409,
      body: { code: "EXECUTION_EXISTS" },
    });
    await until("it has run", async () => (await sandbox.read("ran").catch(() => "")) !== "");
    expect(await sandbox.read("ran")).toBe("x\n");
    const race = ["echo one >> raced", "echo two >> raced"].map((command) => refused({ id: "race", command }));
    expect((await Promise.all(race)).map(({ status }) => status).sort()).toEqual([201, 409]);
    await agent.json("POST", `${sandbox.path}/executions/race/wait`, { timeout_ms: 5000 });
    expect((await sandbox.read("raced")).split("\n")).toHaveLength(2);
    expect(await refused({ id: "again", argv: ["/no/such/program"] })).toMatchObject({
      status: 400,
      body: { code: "PROGRAM_NOT_FOUND" },
    });
    const again = { id: "again", argv: ["/bin/true"] };
    expect(await (await start(again)).wait()).toMatchObject({ exit_code: 0 });
    expect(await refused(again)).toMatchObject({ status: 200, body: { status: "exited", exit_code: 0 } });
    expect((await agent.json("GET", `${sandbox.path}/executions/none`)).status).toBe(404);
  });

  test("62, 66: many run at once; they are listed by start, then id; runs of /process are not", async () => {
    await fresh();
    await sandbox.run("true");
    const ids = Array.from({ length: 64 }, (_, n) => `e${n}`);
    const executions = await Promise.all(
      ids.map((id) => start({ id, command: `${noise("03", 3 * MIB)}; echo ${id} >&2` })),
    );
    const states = await Promise.all(executions.map((execution) => execution.wait(60_000)));
    expect(states.every(({ exit_code }) => exit_code === 0)).toBe(true);
    const hash = noiseHash("03", 3 * MIB);
    for (const execution of executions) {
      const frames = await execution.frames();
      expect(hashOf(frames, "stdout")).toEqual({ hash, end: 3 * MIB });
      expect(textOf(frames, "stderr")).toBe(`${execution.id}\n`);
    }
    const listed = await agent.json<{ items: { id: string; started_at: string }[] }>(
      "GET",
      `${sandbox.path}/executions`,
    );
    const keys = listed.body.items.map(({ started_at, id }) => `${started_at} ${id}`);
    expect(keys).toEqual(keys.toSorted());
    expect(keys).toHaveLength(64);
    expect((await agent.json("GET", "/v1/sandboxes/none/executions")).status).toBe(404);
  }, 120_000);

  test("63: a timeout kills the group and says so", async () => {
    await fresh();
    const execution = await start({
      command: "echo before; (sleep 30; echo late > late) & sleep 30",
      timeout_seconds: 1,
    });
    expect(await execution.wait()).toMatchObject({ status: "exited", timed_out: true, exit_code: null });
    const frames = await execution.frames();
    expect(textOf(frames, "stdout")).toBe("before\n");
    expect(frames.at(-1)).toMatchObject({ type: "exited", timed_out: true });
    // What is killed may take a moment to die.
    const sleeping = async () => (await sandbox.run("cat /proc/[0-9]*/comm | grep -c '^sleep$'; true")).stdout.trim();
    await until("all of it is gone", async () => (await sleeping()) === "0");
    expect(await sandbox.run("echo before; sleep 30", 1)).toMatchObject({ exit_code: 124, stdout: "before\n" });
  }, 30_000);

  test(`no call is cut for a silence of ${SILENCE_SECONDS} s`, async () => {
    await fresh();
    const quiet = await start({ command: `sleep ${SILENCE_SECONDS}; cat > taken; exit 5`, stdin: true });
    const whole = new Uint8Array(2 * MIB);
    const [ran, waited, taken, frames] = await Promise.all([
      sandbox.run(`sleep ${SILENCE_SECONDS}; exit 6`, SILENCE_SECONDS + 20),
      quiet.wait((SILENCE_SECONDS + 20) * 1000),
      quiet.stdin(0, whole, true),
      quiet.frames(),
    ]);
    expect(ran.exit_code).toBe(6);
    expect(waited).toMatchObject({ status: "exited", exit_code: 5 });
    expect(taken).toMatchObject({ status: 200, body: { bytes_written: 2 * MIB, closed: true } });
    expect(frames).toMatchObject([{ type: "exited", exit_code: 5 }]);
  }, 180_000);

  test("A20: what it leaves in the background goes on, and its later output is found by offset", async () => {
    await fresh();
    const execution = await start({ command: "(sleep 1; echo late) & echo now" });
    const began = performance.now();
    const frames = await execution.frames();
    expect(performance.now() - began).toBeLessThan(900);
    expect(textOf(frames, "stdout")).toBe("now\n");
    expect(frames.at(-1)).toMatchObject({ type: "exited", exit_code: 0, output_open: true });
    await until("the late output is here", async () => (await execution.view()).stdout_len === 9);
    await until("the output is closed", async () => !(await execution.view()).output_open);
    expect(await execution.output()).toBe("now\nlate\n");
  });

  test("the loss of whoever started it kills a command that is to die with it, and no other", async () => {
    await fresh();
    const run = async (body: Record<string, unknown>, leave: AbortController): Promise<void> => {
      const response = await agent.fetch("POST", `${sandbox.path}/executions`, {
        headers: { accept: MSGPACK_STREAM, "content-type": "application/json" },
        body: JSON.stringify(body),
        signal: leave.signal,
      });
      await framesOf(response).next();
    };
    const [kill, keep] = [new AbortController(), new AbortController()];
    await run({ id: "kill", command: "echo 1; sleep 30", on_disconnect: "kill" }, kill);
    await run({ id: "keep", command: "echo 1; sleep 30" }, keep);
    kill.abort();
    keep.abort();
    const killed = await agent.json("POST", `${sandbox.path}/executions/kill/wait`, { timeout_ms: 5000 });
    expect(killed.body).toMatchObject({ status: "exited", signal: 9 });
    const kept = await agent.json("POST", `${sandbox.path}/executions/keep/wait`, { timeout_ms: 200 });
    expect(kept.body.status).toBe("running");
  });

  test("64: a stop ends what runs and keeps what was written, also over restarts; a removal leaves nothing", async () => {
    await fresh();
    const done = await start({ command: "echo done; exit 4" });
    await done.wait();
    const running = await start({ command: "echo running; sleep 60" });
    await until("the output is here", async () => (await running.view()).stdout_len === 8);
    const attached = running.frames();
    expect((await agent.json("POST", `${sandbox.path}/stop`)).status).toBe(200);
    expect((await attached).at(-1)).toMatchObject({ type: "error", code: "SANDBOX_GONE", message: "sandbox stopped" });
    const check = async (): Promise<void> => {
      expect(await done.view()).toMatchObject({ exit_code: 4, error: null });
      expect(await running.view()).toMatchObject({ status: "exited", exit_code: null, error: "sandbox stopped" });
      expect(await done.output()).toBe("done\n");
      expect(await running.output()).toBe("running\n");
    };
    await check();
    await agent.kill9();
    await agent.start();
    await check();
    expect((await agent.json("POST", `${sandbox.path}/start`)).status).toBe(200);
    await check();
    await start({ command: "echo again" });
  }, 60_000);

  test.each(["stop", "kill9"] as const)(
    "A11: an agent that ends by %s in the middle of output loses and repeats nothing",
    async (way) => {
      await fresh();
      const bytes = 48 * MIB;
      const paced = `i=0; while [ $i -lt 40 ]; do echo line $i; i=$((i+1)); sleep 0.05; done`;
      const block = await start({ id: "block", command: noise("04", bytes), overflow: "block" });
      const ring = await start({ id: "ring", command: paced, stdin: true });
      const hash = new Bun.CryptoHasher("sha256");
      let end = 0;
      let exited = false;
      const tell = async (): Promise<string> => {
        const view = await Promise.race([block.view().then(JSON.stringify, String), Bun.sleep(2_000)]);
        // Where bytes wait that nobody takes.
        const sockets = Bun.spawnSync(["ss", "-xtanp"]).stdout.toString().split("\n");
        const marks = [agent.runDir, `:${agent.port} `, `pid=${agent.pid},`];
        const own = sockets.filter((line) => marks.some((mark) => line.includes(mark)));
        return `read up to ${end}; the execution: ${view}\n${own.join("\n")}\n${(await agent.log()).slice(-4_000)}`;
      };
      const readOn = async (upTo: number): Promise<void> => {
        const leave = new AbortController();
        const response = await block.stream(`stdout_offset=${end}&role=starter`, leave.signal);
        for await (const frame of framesOf(response)) {
          exited ||= frame.type === "exited";
          if (frame.data === undefined) continue;
          expect(frame.offset).toBe(end);
          hash.update(frame.data);
          end += frame.data.length;
          if (end >= upTo && upTo < bytes) break;
        }
        leave.abort();
      };
      for (const upTo of [5 * MIB, 17 * MIB, 30 * MIB]) {
        await step(`reading up to ${upTo}`, readOn(upTo), tell);
        expect(end).toBeGreaterThanOrEqual(upTo);
        const status = await step<number | void>(`a ${way}`, agent[way](), tell);
        expect(status ?? 0).toBe(0);
        await step("a start", agent.start(), tell);
      }
      await step("reading to the end", readOn(bytes), tell);
      expect(exited).toBe(true);
      expect(hash.digest("hex")).toBe(noiseHash("04", bytes));
      await ring.wait();
      expect(await ring.output()).toBe(Array.from({ length: 40 }, (_, n) => `line ${n}\n`).join(""));
      expect(await ring.view()).toMatchObject({ status: "exited", exit_code: 0 });
    },
    90_000,
  );
});

describe.skipIf(!isRoot)("after everything", () => {
  test("nothing of executions is left on the host", async () => {
    const agent = await TestAgent.start();
    try {
      const before = await traceHost(agent);
      const sandbox = await TestSandbox.create(agent);
      for (const command of ["sleep 60", "yes", "(setsid sleep 60 &) ; true"])
        await TestExecution.start(sandbox, { command });
      await sandbox.delete();
      expect({ ...(await traceHost(agent)), mounts: [], loops: [] }).toEqual({ ...before, mounts: [], loops: [] });
    } finally {
      await agent.dispose();
    }
  }, 60_000);
});
