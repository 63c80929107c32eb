import { describe, expect, test } from "bun:test";
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

test("the default destination is stderr, written before the process exits", async () => {
  const script = `import { createLogger } from ${JSON.stringify(`${import.meta.dir}/log.ts`)};
    createLogger({ level: "info" }).info({ a: 1 }, "last words"); process.exit(3);`;
  const child = Bun.spawn([process.execPath, "-e", script], { stdout: "pipe", stderr: "pipe" });
  const [out, err, code] = await Promise.all([child.stdout.text(), child.stderr.text(), child.exited]);
  expect(code).toBe(3);
  expect(out).toBe("");
  expect(JSON.parse(err)).toMatchObject({ level: "info", a: 1, msg: "last words" });
});
