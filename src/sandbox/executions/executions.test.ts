import { describe, expect, test } from "bun:test";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../operations.ts";
import { drain, ExecutionWorld, SANDBOX, steady, take, until } from "../testing/execution-world.ts";
import { admin } from "../testing/world.ts";

const MIB = 1024 * 1024;
const code = (wanted: string) => ({ code: wanted });

/** What the output frames of `drain` hold together. */
const written = (lines: readonly string[]): string =>
  lines
    .filter((line) => line.startsWith("stdout"))
    .map((line) => line.split(" ").slice(2).join(" "))
    .join("");

describe("start", () => {
  test("runs a command that is shown, counted and told of", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e-1", argv: ["cat", "x"], env: { A: "1" }, cwd: "/d", timeoutSeconds: 3 });
    expect(process.request).toMatchObject({
      argv: ["cat", "x"],
      env: { A: "1" },
      cwd: "/d",
      timeoutMs: 3000,
      stdin: false,
    });
    expect(await at.view("e-1")).toEqual({
      id: "e-1",
      sandboxId: SANDBOX,
      incarnation: 0,
      argv: ["cat", "x"],
      tty: false,
      status: "running",
      startedAtUnixMs: at.world.nowUnixMs,
      exitedAtUnixMs: null,
      exitCode: null,
      signal: null,
      timedOut: false,
      oomKilled: false,
      outputOpen: false,
      error: null,
      stdoutLength: 0,
      stderrLength: 0,
      stdin: { bytesWritten: 0, closed: true },
    });
    expect(at.core.operations.get(admin, SANDBOX).state).toBe("running");
    process.exit(3);
    await until(async () => (await at.view("e-1")).status === "exited", "the exit is seen");
    expect(await at.view("e-1")).toMatchObject({ exitCode: 3, exitedAtUnixMs: at.world.nowUnixMs });
    expect(at.core.operations.get(admin, SANDBOX)).toMatchObject({ state: "ready", last_exit_status: { code: 3 } });
    await until(() => at.world.events.length >= 6, "the events are told");
    expect(at.world.events.slice(2)).toMatchObject([
      { action: "sandbox.running", sandboxId: SANDBOX },
      { action: "exec.started", sandboxId: SANDBOX, attributes: { execution_id: "e-1" } },
      { action: "exec.exited", sandboxId: SANDBOX, attributes: { execution_id: "e-1", exit_code: 3 } },
      { action: "sandbox.idle", sandboxId: SANDBOX, attributes: { exit_code: 3 } },
    ]);
  });

  test("without a limit of time unless the call or the plan sets one", async () => {
    await using at = await ExecutionWorld.create();
    // The plan of this backend allows 20 seconds.
    expect((await at.start({ command: "x" })).request.timeoutMs).toBe(20_000);
    expect((await at.start({ command: "x", timeoutSeconds: 90 })).request.timeoutMs).toBe(20_000);
    expect((await at.start({ command: "x", timeoutSeconds: 0.5 })).request.timeoutMs).toBe(500);
  });

  test("the same id and command is the same execution, also in the middle of its start and after its end", async () => {
    await using at = await ExecutionWorld.create();
    const gate = Promise.withResolvers<void>();
    at.guest.startGate = gate.promise;
    const { executions } = at.core;
    const first = executions.startExecution(admin, SANDBOX, { id: "e", command: "a" });
    const second = executions.startExecution(admin, SANDBOX, { id: "e", command: "a" });
    const other = executions.startExecution(admin, SANDBOX, { id: "e", command: "b" });
    await expect(other).rejects.toMatchObject(code("EXECUTION_EXISTS"));
    await expect(executions.startExecution(admin, SANDBOX, { id: "e", argv: ["a"] })).rejects.toMatchObject(
      code("EXECUTION_EXISTS"),
    );
    gate.resolve();
    expect((await first).existing).toBe(false);
    expect(await second).toEqual({ ...(await first), existing: true });
    at.guest.get("e").exit(0);
    await until(async () => (await at.view("e")).status === "exited", "the exit is seen");
    const after = await executions.startExecution(admin, SANDBOX, { id: "e", command: "a", env: { other: "1" } });
    expect(after).toMatchObject({ existing: true, execution: { status: "exited" } });
    expect(at.guest.starts).toBe(1);
  });

  test("one that fails leaves the id free, and nothing behind", async () => {
    await using at = await ExecutionWorld.create();
    at.guest.startFault = { error: new AgentError("PROGRAM_NOT_FOUND"), afterStart: false };
    await expect(at.start({ id: "e", command: "a" })).rejects.toMatchObject(code("PROGRAM_NOT_FOUND"));
    await expect(at.view("e")).rejects.toMatchObject(code("EXECUTION_NOT_FOUND"));
    expect(at.core.operations.get(admin, SANDBOX).state).toBe("ready");
    await at.restart({ kill: true });
    expect(await at.core.executions.executions(admin, SANDBOX)).toEqual([]);
    await at.start({ id: "e", command: "b" });
    expect(at.guest.starts).toBe(1);
  });

  test("one whose answer was lost is not started twice", async () => {
    await using at = await ExecutionWorld.create();
    at.guest.startFault = { error: new AgentError("GUEST_UNREACHABLE"), afterStart: true };
    await at.start({ id: "e", command: "a" });
    expect(at.guest.starts).toBe(1);
  });

  test.each([
    [{ command: "a", id: "a/b" }, "BAD_REQUEST"],
    [{ command: "a", id: "" }, "BAD_REQUEST"],
    [{ command: "a", id: "x".repeat(65) }, "BAD_REQUEST"],
    [{}, "BAD_REQUEST"],
    [{ command: "a", argv: ["b"] }, "BAD_REQUEST"],
    [{ argv: [] }, "BAD_REQUEST"],
    [{ command: "a", user: "0" }, "BAD_REQUEST"],
    [{ command: "a", tty: { cols: 0, rows: 1 } }, "BAD_REQUEST"],
    [{ command: "a", timeoutSeconds: -1 }, "BAD_REQUEST"],
    [{ command: "x".repeat(limits.commandMaxBytes + 1) }, "COMMAND_TOO_LARGE"],
  ])("%o is %s", async (request, wanted) => {
    await using at = await ExecutionWorld.create();
    await expect(at.core.executions.startExecution(admin, SANDBOX, request)).rejects.toMatchObject(code(wanted));
    expect(at.guest.starts).toBe(0);
  });

  test("in a sandbox that does not run, or that belongs to another tenant", async () => {
    await using at = await ExecutionWorld.create();
    const { executions, operations } = at.core;
    const stranger: Caller = { actor: "s", role: "admin", tenant: "t", token: "t" };
    await expect(executions.executions(stranger, SANDBOX)).rejects.toMatchObject(code("SANDBOX_NOT_FOUND"));
    await expect(executions.executions(admin, "none")).rejects.toMatchObject(code("SANDBOX_NOT_FOUND"));
    await expect(executions.execution(admin, SANDBOX, "none")).rejects.toMatchObject(code("EXECUTION_NOT_FOUND"));
    await operations.pause(admin, SANDBOX);
    const declining: Caller = { ...admin, declinesResume: true };
    await expect(executions.startExecution(declining, SANDBOX, { command: "a" })).rejects.toMatchObject(
      code("SANDBOX_PAUSED"),
    );
    await operations.resume(admin, SANDBOX);
    await at.start({ command: "a" });
    await expect(operations.pause(admin, SANDBOX)).rejects.toMatchObject(code("SANDBOX_BUSY"));
    await operations.stop(admin, SANDBOX);
    await expect(executions.startExecution(admin, SANDBOX, { command: "a" })).rejects.toMatchObject(
      code("INVALID_STATE"),
    );
  });

  test("256 run at a time", async () => {
    await using at = await ExecutionWorld.create();
    const starts = Array.from({ length: 256 }, (_, n) => at.start({ id: `e${n}`, command: "a" }));
    await Promise.all(starts);
    await expect(at.start({ command: "a" })).rejects.toMatchObject(code("SANDBOX_BUSY"));
    at.guest.get("e7").exit(0);
    await at.core.executions.waitExecution(admin, SANDBOX, "e7", 5000);
    await at.start({ command: "a" });
  });

  test("65: 1,000 are kept, and the one that ended first goes first, in the guest too", async () => {
    await using at = await ExecutionWorld.create();
    for (let n = 0; n < 1002; n++) {
      at.world.nowUnixMs += 1;
      const process = await at.start({ id: `e${n}`, command: "a" });
      if (n !== 0) process.exit(0);
      if (n !== 0) await at.core.executions.waitExecution(admin, SANDBOX, `e${n}`, 5000);
    }
    const kept = (await at.core.executions.executions(admin, SANDBOX)).map(({ id }) => id);
    expect(kept).toHaveLength(1000);
    expect(kept.slice(0, 2)).toEqual(["e0", "e3"]);
    await expect(at.view("e1")).rejects.toMatchObject(code("EXECUTION_NOT_FOUND"));
    await until(() => at.guest.all.size === 1000, "the guest forgets");
    // An id that is free again belongs to the new one from the first moment.
    const makingPlace = at.start({ id: "e1001-", command: "a" });
    const [again] = await Promise.all([at.start({ id: "e3", command: "b" }), makingPlace]);
    await again.write("stdout", "kept");
    await until(async () => (await at.view("e3")).stdoutLength === 4, "the output is here");
    await at.restart({ kill: true });
    expect(await at.view("e3")).toMatchObject({ status: "running", command: "b", stdoutLength: 4 });
    expect(await at.core.executions.executions(admin, SANDBOX)).toHaveLength(1000);
  }, 60_000);

  test("66: listed by start, then id", async () => {
    await using at = await ExecutionWorld.create();
    for (const id of ["b", "a"]) await at.start({ id, command: "x" });
    at.world.nowUnixMs += 1;
    for (const id of ["0", "c"]) await at.start({ id, command: "x" });
    const ids = (await at.core.executions.executions(admin, SANDBOX)).map((execution) => execution.id);
    expect(ids).toEqual(["a", "b", "0", "c"]);
  });
});

describe("wait", () => {
  test("asks, waits for a while, and is woken by the exit itself", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a" });
    const wait = (ms: number) => at.core.executions.waitExecution(admin, SANDBOX, "e", ms);
    expect((await wait(0)).status).toBe("running");
    expect((await wait(20)).status).toBe("running");
    const waiting = wait(60_000);
    // What it left behind holds its output open, which nobody who waits for the exit waits for.
    process.exit(null, { signal: 9, open: true });
    expect(await waiting).toMatchObject({ status: "exited", signal: 9, exitCode: null, outputOpen: true });
    expect((await wait(0)).status).toBe("exited");
  });
});

describe("readers", () => {
  test("replay from their offsets, stdout first, then what is written, then the exit", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "out-data");
    await process.write("stderr", "err");
    await until(async () => (await at.view("e")).stderrLength === 3, "the output is here");
    const reader = await at.attach("e", { from: { stdout: 2, stderr: 0 } });
    expect(await take(reader, 2)).toEqual(["stdout 2 t-data", "stderr 0 err"]);
    const next = take(reader, 1);
    await process.write("stdout", "!");
    expect(await next).toEqual(["stdout 8 !"]);
    process.exit(0);
    expect(await drain(reader)).toEqual(["exited 0"]);
    expect(await drain(await at.attach("e", { from: { stdout: 9, stderr: 3 } }))).toEqual(["exited 0"]);
  });

  test("a terminal has one output, which is called pty", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", tty: { cols: 80, rows: 24 } });
    await process.write("stdout", "$ ");
    process.exit(0);
    expect(await drain(await at.attach("e"))).toEqual(["pty 0 $ ", "exited 0"]);
  });

  test("of 8 MiB and 4 bytes begin at byte 4", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a" });
    await process.write("stdout", new Uint8Array(8 * MIB + 4));
    process.exit(0);
    await until(async () => (await at.view("e")).stdoutLength === 8 * MIB + 4, "the output is here");
    await until(() => process.stdout.length === 0, "everything is acknowledged");
    const frame = await (await at.attach("e")).next();
    expect(frame).toMatchObject({ type: "output", offset: 4 });
  });

  test("of an offset that is not reached wait for it", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "abc");
    const reader = await at.attach("e", { from: { stdout: 5, stderr: 0 } });
    const first = take(reader, 1);
    await process.write("stdout", "defg");
    expect(await first).toEqual(["stdout 5 fg"]);
  });

  test("any number of them read the same, and one that stalls holds nobody up", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a" });
    const stalled = await at.attach("e");
    const readers = await Promise.all(Array.from({ length: 20 }, () => at.attach("e")));
    const ends = readers.map(() => 0);
    const read = readers.map(async (reader, index) => {
      const hash = new Bun.CryptoHasher("sha256");
      let end = 0;
      for (let frame = await reader.next(); frame?.type === "output"; frame = await reader.next()) {
        expect(frame.offset).toBe(end);
        end += frame.data.length;
        ends[index] = end;
        hash.update(frame.data);
      }
      return hash.digest("hex");
    });
    const hash = new Bun.CryptoHasher("sha256");
    for (let n = 0; n < 300; n++) {
      const bytes = crypto.getRandomValues(new Uint8Array(64 * 1024));
      hash.update(bytes);
      await process.write("stdout", bytes);
      // No faster than these readers are, since nothing holds the process up.
      while (n * bytes.length - Math.min(...ends) > 4 * MIB) await Bun.sleep(1);
    }
    process.exit(0);
    expect(new Set(await Promise.all(read))).toEqual(new Set([hash.digest("hex")]));
    await until(() => process.stdout.length === 0, "everything is acknowledged");
    const frame = await stalled.next();
    expect(frame?.type === "output" && frame.offset).toBe(300 * 64 * 1024 - 8 * MIB);
  });

  test("are told of the exit at once when something holds the output open, and find later bytes by offset", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "abc");
    process.exit(0, { open: true });
    expect(await drain(await at.attach("e"))).toEqual(["stdout 0 abc", "exited 0 open"]);
    await process.write("stdout", "later");
    expect(await take(await at.attach("e", { from: { stdout: 3, stderr: 0 } }), 1)).toEqual(["stdout 3 later"]);
    process.closeOutput();
    await until(async () => !(await at.view("e")).outputOpen, "the end of the output is seen");
    expect(await drain(await at.attach("e", { from: { stdout: 8, stderr: 0 } }))).toEqual(["exited 0"]);
  });

  test("an exit that overtakes the output does not cut it", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "a");
    const reading = drain(await at.attach("e"));
    process.exit(0, { open: true, unread: 6 });
    for (let n = 0; n < 6; n++) {
      await Bun.sleep(10);
      await process.write("stdout", String(n));
    }
    const lines = await reading;
    expect(lines.at(-1)).toBe("exited 0 open");
    expect(written(lines)).toBe("a012345");
  });

  test("leave when their signal aborts, also while they wait", async () => {
    await using at = await ExecutionWorld.create();
    await at.startWriting("e", "");
    const stop = new AbortController();
    const reader = await at.attach("e", { signal: stop.signal });
    const waiting = reader.next();
    stop.abort();
    expect(await waiting).toBeNull();
    expect(await reader.next()).toBeNull();
    const late = await at.attach("e", { signal: stop.signal });
    expect(await late.next()).toBeNull();
  });

  test("see no gap when the connection to the guest is cut", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "0");
    const reading = drain(await at.attach("e"));
    for (let n = 1; n <= 9; n++) {
      process.cut();
      await process.write("stdout", String(n));
      await Bun.sleep(3);
    }
    process.exit(0);
    const lines = await reading;
    expect(written(lines)).toBe("0123456789");
    expect(lines.at(-1)).toBe("exited 0");
    expect(process.attachments).toBeGreaterThan(1);
  });
});

describe("the starter", () => {
  test("holds a process up that may be, whatever other readers do, and lets it run on as it reads", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", overflow: "block" });
    const starter = await at.attach("e", { role: "starter" });
    const other = await at.attach("e");
    const total = 40 * MIB;
    const writing = process.write("stdout", new Uint8Array(total)).then(() => process.exit(0));
    const consume = async (reader: typeof starter, upTo: number): Promise<number> => {
      for (let end = 0; end < upTo;) {
        const frame = await reader.next();
        if (frame?.type !== "output") return end;
        expect(frame.offset).toBe(end);
        end += frame.data.length;
        if (end >= upTo) return end;
      }
      return 0;
    };
    // What is in the rings on both sides, the credit, and no more.
    void consume(other, total);
    await Bun.sleep(100);
    expect(process.stdout.end).toBeLessThanOrEqual(8 * MIB + 2 * MIB + MIB);
    expect(process.stdout.end).toBeGreaterThanOrEqual(8 * MIB);
    expect(await consume(starter, total)).toBe(total);
    await writing;
    expect(await drain(starter)).toEqual(["exited 0"]);
  });

  test("may come back within its grace and finds every byte; without it the process runs on", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", overflow: "block" });
    const first = new AbortController();
    const starter = await at.attach("e", { role: "starter", signal: first.signal });
    void process.write("stdout", new Uint8Array(20 * MIB));
    let end = 0;
    while (end < 6 * MIB) {
      const frame = await starter.next();
      if (frame?.type === "output") end = frame.offset + frame.data.length;
    }
    first.abort();
    const held = await steady(() => process.stdout.end);
    // Back at what it had confirmed, well before what it had been given.
    const again = await at.attach("e", { role: "starter", from: { stdout: 3 * MIB, stderr: 0 } });
    expect(await again.next()).toMatchObject({ offset: 3 * MIB });
    // Not only what was acknowledged late went on.
    expect(await steady(() => process.stdout.end)).toBe(held);
    expect(process.block).toBe(true);
  });

  test("kills the process by its loss when it was so asked, and by nothing else", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", onDisconnect: "kill" });
    const old = new AbortController();
    await at.attach("e", { role: "starter", signal: old.signal });
    const now = new AbortController();
    await at.attach("e", { role: "starter", signal: now.signal });
    const reader = new AbortController();
    await at.attach("e", { role: "reader", signal: reader.signal });
    reader.abort();
    old.abort();
    await Bun.sleep(5);
    expect(process.signals).toEqual([]);
    now.abort();
    await until(() => process.signals.length > 0, "it is killed");
    expect(process.signals).toEqual([9]);
    expect(await at.core.executions.waitExecution(admin, SANDBOX, "e", 5000)).toMatchObject({ signal: 9 });
  });

  test("that reads to the end of an execution has not been lost", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", onDisconnect: "kill" });
    const stop = new AbortController();
    const starter = await at.attach("e", { role: "starter", signal: stop.signal });
    process.exit(0, { open: true });
    expect(await drain(starter)).toEqual(["exited 0 open"]);
    stop.abort();
    await Bun.sleep(5);
    expect(process.signals).toEqual([]);
  });
});

describe("input", () => {
  test("is taken once, in order, whatever is sent again", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", stdin: true });
    expect(await at.stdin("e", 0, "hello")).toEqual({ bytesWritten: 5, closed: false });
    expect(await at.stdin("e", 0, "hello")).toEqual({ bytesWritten: 5, closed: false });
    expect(await at.stdin("e", 3, "lo world")).toEqual({ bytesWritten: 11, closed: false });
    await expect(at.stdin("e", 99, "x")).rejects.toMatchObject({ code: "STDIN_GAP", details: { accepted: 11 } });
    expect((await at.view("e")).stdin).toEqual({ bytesWritten: 11, closed: false });
    expect(await at.stdin("e", 11, "!", true)).toEqual({ bytesWritten: 12, closed: true });
    expect(await at.stdin("e", 12, "", true)).toEqual({ bytesWritten: 12, closed: true });
    expect(await at.stdin("e", 6, "world!")).toEqual({ bytesWritten: 12, closed: true });
    await expect(at.stdin("e", 12, "more")).rejects.toMatchObject(code("STDIN_CLOSED"));
    expect(process.input).toBe("hello world!");
    process.exit(0);
    await at.core.executions.waitExecution(admin, SANDBOX, "e", 5000);
    expect(await at.stdin("e", 6, "world!", true)).toEqual({ bytesWritten: 12, closed: true });
    await expect(at.stdin("e", 6, "world!!")).rejects.toMatchObject(code("EXECUTION_EXITED"));
    await expect(at.stdin("e", 13, "")).rejects.toMatchObject(code("EXECUTION_EXITED"));
  });

  test("that made the process exit while no agent was there was taken, and is when it is sent again", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", stdin: true });
    expect(await at.stdin("e", 0, "one")).toEqual({ bytesWritten: 3, closed: false });
    await at.core.shutdown(1000);
    process.input += " two";
    process.exit(0);
    await at.restart({ kill: true });
    expect(await at.stdin("e", 3, " two", true)).toEqual({ bytesWritten: 7, closed: true });
    await expect(at.stdin("e", 3, " two!")).rejects.toMatchObject(code("EXECUTION_EXITED"));
  });

  test("of a writer that leaves takes no place, and what it got in is known", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", stdin: true });
    const reads = Promise.withResolvers<void>();
    process.inputGate = reads.promise;
    const leaving = Array.from({ length: limits.stdinWritersMax }, () => new AbortController());
    const outcomes = leaving.map(({ signal }, n) =>
      at.stdin("e", n, String.fromCharCode(97 + n), false, signal).then(
        () => "taken",
        ({ code }: AgentError) => code,
      ),
    );
    await Bun.sleep(1);
    await expect(at.stdin("e", 0, "busy")).rejects.toMatchObject(code("SANDBOX_BUSY"));
    // The one that the process keeps waiting, and one that waits for its turn.
    for (const n of [0, 2]) {
      leaving[n]?.abort();
      expect(await outcomes[n]).toBe("BAD_REQUEST");
    }
    const again = at.stdin("e", 0, "abc");
    await expect(at.stdin("e", 0, "", false, AbortSignal.abort())).rejects.toMatchObject({
      code: "BAD_REQUEST",
      message: "the writer has left",
    });
    reads.resolve();
    expect(await again).toEqual({ bytesWritten: 3, closed: false });
    expect([await outcomes[1], await outcomes[15]]).toEqual(["STDIN_GAP", "STDIN_GAP"]);
    // Taken by the guest before its writer left, and not told any more.
    process.input += "more";
    const gone = new AbortController();
    process.inputGate = new Promise(() => undefined);
    const last = at.stdin("e", 3, "more", false, gone.signal);
    await Bun.sleep(1);
    gone.abort();
    await expect(last).rejects.toMatchObject(code("BAD_REQUEST"));
    await until(async () => (await at.view("e")).stdin.bytesWritten === 7, "the guest is asked");
  });

  test("of many writers comes through whole", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", stdin: true });
    const text = "0123456789".repeat(100_000);
    const pieces = Array.from({ length: 10 }, (_, n) => n * 100_000);
    await Promise.all(pieces.map((offset) => at.stdin("e", offset, text.slice(offset, offset + 300_000))));
    expect(process.input).toBe(text);
  });

  test("is closed where none was asked for, and has no end on a terminal", async () => {
    await using at = await ExecutionWorld.create();
    await at.start({ id: "none", command: "a" });
    await expect(at.stdin("none", 0, "x")).rejects.toMatchObject(code("STDIN_CLOSED"));
    const terminal = await at.start({ id: "tty", command: "a", tty: { cols: 8, rows: 2 } });
    await expect(at.stdin("tty", 0, "x", true)).rejects.toMatchObject(code("BAD_REQUEST"));
    expect(await at.stdin("tty", 0, "x")).toEqual({ bytesWritten: 1, closed: false });
    expect(terminal.input).toBe("x");
  });
});

describe("signal and resize", () => {
  test("reach the process, and nothing that has exited", async () => {
    await using at = await ExecutionWorld.create();
    const { executions } = at.core;
    const process = await at.start({ id: "e", command: "a", tty: { cols: 80, rows: 24 } });
    await at.start({ id: "pipes", command: "a" });
    await executions.signalExecution(admin, SANDBOX, "e", 15);
    expect(process.signals).toEqual([15]);
    for (const signal of [0, 65, 1.5, Number.NaN]) {
      await expect(executions.signalExecution(admin, SANDBOX, "e", signal)).rejects.toMatchObject(code("BAD_REQUEST"));
    }
    await executions.resizeExecution(admin, SANDBOX, "e", { cols: 100, rows: 30 });
    expect(process.size).toEqual({ cols: 100, rows: 30 });
    const size = { cols: 1, rows: 1 };
    await expect(executions.resizeExecution(admin, SANDBOX, "pipes", size)).rejects.toMatchObject(code("TTY_REQUIRED"));
    process.exit(0);
    await executions.waitExecution(admin, SANDBOX, "e", 5000);
    await expect(executions.signalExecution(admin, SANDBOX, "e", 15)).rejects.toMatchObject(code("EXECUTION_EXITED"));
    await expect(executions.resizeExecution(admin, SANDBOX, "e", size)).rejects.toMatchObject(code("EXECUTION_EXITED"));
  });
});

describe("the end of the sandbox", () => {
  test("ends what runs, leaves what had ended, and the output stays readable, also after a restart", async () => {
    await using at = await ExecutionWorld.create();
    (await at.startWriting("done", "first")).exit(4);
    await at.core.executions.waitExecution(admin, SANDBOX, "done", 5000);
    await at.startWriting("running", "second");
    await until(async () => (await at.view("running")).stdoutLength === 6, "the output is here");
    const attached = drain(await at.attach("running"));
    await at.core.operations.stop(admin, SANDBOX);
    const last = "error SANDBOX_GONE sandbox stopped";
    expect(await attached).toEqual(["stdout 0 second", last]);
    const check = async (): Promise<void> => {
      expect(await at.view("done")).toMatchObject({ status: "exited", exitCode: 4, error: null });
      expect(await at.view("running")).toMatchObject({ status: "exited", exitCode: null, error: "sandbox stopped" });
      expect(await drain(await at.attach("done"))).toEqual(["stdout 0 first", "exited 4"]);
      expect(await drain(await at.attach("running"))).toEqual(["stdout 0 second", last]);
    };
    await check();
    await at.restart();
    await check();
    await at.core.operations.start(admin, SANDBOX);
    await check();
    await at.start({ id: "new", command: "a" });
    expect(await at.core.executions.executions(admin, SANDBOX)).toHaveLength(3);
  });

  test("by its removal takes everything with it", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "x");
    const attached = drain(await at.attach("e"));
    void process.write("stdout", new Uint8Array(4 * MIB));
    await at.core.operations.remove(admin, SANDBOX);
    expect((await attached).at(-1)).toStartWith("error SANDBOX_GONE");
    expect(await readdir(at.world.instancesDir)).toEqual([]);
  });
});

describe("a guest that cuts the connection again and again", () => {
  test("fills no memory with what cannot be stored yet, and loses nothing", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", overflow: "block" });
    const starter = await at.attach("e", { role: "starter" });
    void process.write("stdout", new Uint8Array(12 * MIB));
    const length = async (): Promise<number> => (await at.view("e")).stdoutLength;
    // As far as the process may run ahead of its reader, and one credit.
    const held = 2 * MIB + MIB;
    await until(async () => (await length()) === held, "the process is held up");
    for (let n = 0; n < 8; n++) {
      process.cut();
      await until(() => process.attachments === n + 2, "the agent comes back");
      await Bun.sleep(5);
      expect(await length()).toBe(held);
    }
    for (let end = 0; end < 12 * MIB;) {
      const frame = await starter.next();
      if (frame?.type !== "output") throw new Error("ended");
      expect(frame.offset).toBe(end);
      end += frame.data.length;
    }
  });
});

describe("an agent that is restarted", () => {
  test.each([{ kill: false }, { kill: true }])("goes on with every byte (%o)", async (how) => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", stdin: true });
    const silent = await at.start({ id: "silent", command: "b" });
    await at.stdin("e", 0, "in");
    const hash = new Bun.CryptoHasher("sha256");
    const read = new Bun.CryptoHasher("sha256");
    let end = 0;
    const readOn = async (upTo: number): Promise<void> => {
      const reader = await at.attach("e", { from: { stdout: end, stderr: 0 } });
      while (end < upTo) {
        const frame = await reader.next();
        if (frame?.type !== "output") throw new Error(`ended at ${end}`);
        expect(frame.offset).toBe(end);
        end += frame.data.length;
        read.update(frame.data);
      }
    };
    const write = async (bytes: number): Promise<void> => {
      const data = crypto.getRandomValues(new Uint8Array(bytes));
      hash.update(data);
      await process.write("stdout", data);
    };
    let written = 0;
    for (const bytes of [10, 60_000, 50_000, 7, 65_536]) {
      await write(bytes);
      written += bytes;
      await readOn(written);
      await write(20_000);
      written += 20_000;
      await at.restart(how);
    }
    silent.exit(5);
    await readOn(written);
    expect(read.digest("hex")).toBe(hash.digest("hex"));
    expect(await at.view("e")).toMatchObject({
      status: "running",
      command: "a",
      stdin: { bytesWritten: 2, closed: false },
    });
    expect(at.core.operations.get(admin, SANDBOX).state).toBe("running");
    expect(await at.core.executions.waitExecution(admin, SANDBOX, "silent", 5000)).toMatchObject({ exitCode: 5 });
    expect(at.guest.starts).toBe(2);
    await expect(at.start({ id: "e", command: "other" })).rejects.toMatchObject(code("EXECUTION_EXISTS"));
  });

  test("reports what ended while it was away, and takes the output that it had not seen", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.startWriting("e", "before ");
    await until(async () => (await at.view("e")).stdoutLength === 7, "the output is here");
    await at.core.shutdown(1000);
    await process.write("stdout", "away");
    process.exit(6);
    await at.restart();
    const lines = await drain(await at.attach("e"));
    expect(written(lines)).toBe("before away");
    expect(lines.at(-1)).toBe("exited 6");
    expect(at.core.operations.get(admin, SANDBOX)).toMatchObject({ state: "ready", last_exit_status: { code: 6 } });
  });

  test("tells readers to come back, and holds a process up for its starter", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", overflow: "block", onDisconnect: "kill" });
    const starter = await at.attach("e", { role: "starter" });
    void process.write("stdout", new Uint8Array(30 * MIB));
    let end = 0;
    while (end < 4 * MIB) {
      const frame = await starter.next();
      if (frame?.type === "output") end = frame.offset + frame.data.length;
    }
    const waiting = drain(starter);
    await at.restart();
    expect((await waiting).at(-1)).toStartWith("error SHUTTING_DOWN");
    await Bun.sleep(50);
    expect(process.signals).toEqual([]);
    const again = await at.attach("e", { role: "starter", from: { stdout: end - MIB, stderr: 0 } });
    for (end -= MIB; end < 30 * MIB;) {
      const frame = await again.next();
      if (frame?.type !== "output") throw new Error("ended");
      expect(frame.offset).toBe(end);
      end += frame.data.length;
    }
  });

  test.each([{ kill: false }, { kill: true }])("acknowledges what the one before it kept (%o)", async (how) => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "a", overflow: "block" });
    at.guest.losesAcknowledgements = true;
    const starter = await at.attach("e", { role: "starter" });
    const writing = process.write("stdout", new Uint8Array(9 * MIB));
    let end = 0;
    while (end < 8 * MIB) {
      const frame = await starter.next();
      if (frame?.type === "output") end = frame.offset + frame.data.length;
    }
    // Nothing comes any more that could be acknowledged with it.
    await at.restart(how);
    at.guest.losesAcknowledgements = false;
    const again = await at.attach("e", { role: "starter", from: { stdout: end, stderr: 0 } });
    expect(await again.next()).toMatchObject({ type: "output", offset: 8 * MIB });
    await writing;
  });

  test("and was killed before the guest heard of a start does it when it is asked again", async () => {
    await using at = await ExecutionWorld.create();
    const before = await at.start({ id: "before", command: "a" });
    at.guest.startGate = new Promise(() => {});
    const request = { id: "e", command: "b" };
    void at.core.executions.startExecution(admin, SANDBOX, request).catch(() => {});
    const directory = join(at.world.instancesDir, SANDBOX, "exec");
    const isWritten = async () =>
      (await readFile(join(directory, "rows.1"), "utf8")).includes(`{"begun":{"version":2,"id":"e"`);
    await until(isWritten, "the start is written down");
    at.guest.startGate = Promise.resolve();
    await at.restart({ kill: true });
    await expect(at.view("e")).rejects.toMatchObject(code("EXECUTION_NOT_FOUND"));
    const again = await at.start(request);
    expect(await at.view("e")).toMatchObject({ status: "running", error: null });
    await at.restart({ kill: true });
    again.exit(4);
    before.exit(3);
    expect(await at.core.executions.waitExecution(admin, SANDBOX, "e", 5000)).toMatchObject({ exitCode: 4 });
    expect(await at.core.executions.waitExecution(admin, SANDBOX, "before", 5000)).toMatchObject({ exitCode: 3 });
  });

  test("does not know what the guest has lost, and forgets in the guest what it does not know", async () => {
    await using at = await ExecutionWorld.create();
    await at.startWriting("lost", "x");
    const { guest } = at;
    await at.core.shutdown(1000);
    guest.all.delete("lost");
    const start = { command: "a", env: {}, stdin: false, timeoutMs: 0, ringMaxBytes: 8 * MIB, block: false };
    await guest.start({ ...start, id: "stray" });
    await guest.start({ ...start, id: "over" });
    guest.get("over").exit(0);
    await at.restart();
    expect(await at.view("lost")).toMatchObject({ status: "exited", exitCode: null });
    expect((await at.view("lost")).error).toContain("does not know");
    expect(await at.view("stray")).toMatchObject({ status: "running", command: "a" });
    await until(() => !guest.all.has("over"), "the guest forgets");
    await expect(at.view("over")).rejects.toMatchObject(code("EXECUTION_NOT_FOUND"));
  });
});
