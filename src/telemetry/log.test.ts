import { describe, expect, test } from "bun:test";
import { closeSync, constants, mkdtempSync, openSync, rmSync } from "node:fs";
import { AgentError } from "../errors/agent-error.ts";
import { createLogger, type LogLevel } from "./log.ts";

function capture(level: LogLevel = "debug") {
  const lines: string[] = [];
  const log = createLogger({ level, write: (line) => lines.push(line) });
  const last = (): Record<string, unknown> => JSON.parse(lines.at(-1) ?? "null") as Record<string, unknown>;
  return { log, lines, last };
}

describe("lines", () => {
  test("are one JSON object each, with level, time, bindings, fields and message", () => {
    const { log, lines, last } = capture();
    log.child({ sandbox: "s1" }).info({ count: 2, text: "a\nb" }, "two\nlines");
    expect(lines).toHaveLength(1);
    expect(lines[0]?.indexOf("\n")).toBe((lines[0]?.length ?? 0) - 1);
    expect(last()).toMatchObject({ level: "info", sandbox: "s1", count: 2, text: "a\nb", msg: "two\nlines" });
    expect(Date.parse(String(last().time))).toBeGreaterThan(0);
    expect(last().pid).toBeUndefined();
  });

  test("below the level are not written", () => {
    const { log, lines } = capture("warn");
    log.info({}, "no");
    log.child({ a: 1 }).debug({}, "no");
    log.warn({}, "yes");
    expect(lines).toHaveLength(1);
  });

  test("stay within bounds whatever the fields hold", () => {
    const { log, lines, last } = capture();
    const loop: Record<string, unknown> = {
      big: "x".repeat(1_000_000),
      many: new Array(100_000).fill(1),
      bytes: new Uint8Array(9),
    };
    loop.self = loop;
    log.info({ loop, big: 2n ** 60n }, "y".repeat(1_000_000));
    expect(lines[0]?.length).toBeLessThan(200_000);
    expect(last().big).toBe("1152921504606846976");
  });
});

describe("secrets", () => {
  const secret = "hunter2hunter2";

  test.each([
    { token: secret },
    { headers: { Authorization: `Bearer ${secret}` } },
    { list: [{ deep: { "Set-Cookie": secret } }] },
    { db: { password: { value: secret } } },
    { guest_token: [secret], apiKey: secret, clientSecret: secret },
    { text: `sent authorization: Bearer ${secret}` },
    { error: new Error(`refused "Basic ${secret}"`) },
    { error: new AgentError("INTERNAL", "x", { details: { token: secret }, cause: new Error(`Bearer ${secret}`) }) },
  ])("never appear: %#", (fields) => {
    const { log, lines } = capture();
    log.error(fields, "failed");
    log.child(fields).warn({}, `Bearer ${secret}`);
    expect(lines).toHaveLength(2);
    expect(lines.join("")).not.toContain(secret);
  });

  test("leave the rest of an error readable", () => {
    const { log, last } = capture();
    const cause = new Error("disk on fire");
    log.error({ error: new AgentError("HOST_FULL", undefined, { cause }) }, "failed");
    expect(last().error).toMatchObject({
      name: "AgentError",
      code: "HOST_FULL",
      message: "the host has no space left",
      causes: ["Error: disk on fire"],
    });
  });
});

describe("standard error", () => {
  const command = (body: string) => {
    const script = `import { createLogger } from ${JSON.stringify(`${import.meta.dir}/log.ts`)};
      import { isWritable } from ${JSON.stringify(`${import.meta.dir}/../../ffi/readiness.ts`)};
      const log = createLogger({ level: "info", isWritable }); ${body}`;
    return [process.execPath, "-e", script];
  };
  const run = (body: string) => Bun.spawn(command(body), { stdout: "pipe", stderr: "pipe" });

  test.each([
    ["process.exit", "process.exit(3)", 3],
    ["an uncaught error", "throw new Error('bug')", 1],
    ["the end", "", 0],
  ])("has everything that was logged before %s", async (_, ending, code) => {
    const child = run(`for (let n = 0; n < 500; n++) log.info({ n }, "x".repeat(1000)); ${ending}`);
    const [out, err] = await Promise.all([child.stdout.text(), child.stderr.text()]);
    expect(await child.exited).toBe(code);
    expect(out).toBe("");
    const lines = err.split("\n").filter((line) => line.startsWith("{"));
    const numbers = lines.map((line) => (JSON.parse(line) as { n: number }).n);
    expect(numbers).toEqual(Array.from({ length: 500 }, (_, n) => n));
  });

  test("may have a reader that stalls: the event loop goes on", async () => {
    const directory = mkdtempSync("/tmp/fluxvm-log-");
    Bun.spawnSync(["mkfifo", `${directory}/fifo`]);
    const fifo = openSync(`${directory}/fifo`, constants.O_RDWR);
    const body = `for (let n = 0; n < 2000; n++) log.info({ n }, "x".repeat(1000));
      let ticks = 0; setInterval(() => ++ticks === 20 && console.log("going on"), 5);`;
    const child = Bun.spawn(command(body), { stdout: "pipe", stderr: fifo });
    const reader = child.stdout.getReader();
    expect(Buffer.from((await reader.read()).value ?? []).toString()).toBe("going on\n");
    child.kill("SIGKILL");
    await child.exited;
    closeSync(fifo);
    rmSync(directory, { recursive: true });
  });

  test("may have a reader that went away: the process goes on", async () => {
    const body = `for (let n = 0; n < 50; n++) { log.info({ n }, "x"); await Bun.sleep(1); } console.log("alive");`;
    const child = run(body);
    void child.stderr.cancel();
    expect((await child.stdout.text()).trim()).toBe("alive");
    expect(await child.exited).toBe(0);
  });
});
