import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync } from "node:fs";
import { openAudit, type AuditEntry } from "./audit.ts";
import { createLogger } from "./log.ts";

let directory: string;
let lines: string[];

beforeEach(() => {
  directory = mkdtempSync("/tmp/fluxvm-audit-");
  lines = [];
});

afterEach(() => {
  rmSync(directory, { recursive: true, force: true });
});

const log = () => createLogger({ level: "info", write: (line) => lines.push(line) });
const file = () => `${directory}/audit.log`;

const entry = (n: number): AuditEntry => ({
  actor: "ci",
  role: "admin",
  tenant: null,
  method: "POST",
  path: `/v1/sandboxes/${n}`,
  status: 201,
  duration_ms: 1.5,
  request_id: `r${n}`,
});

const numbersIn = (path: string) =>
  readFileSync(path, "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => Number((JSON.parse(line) as AuditEntry).request_id.slice(1)));

test("each request is one line in the log with the audit target", async () => {
  const audit = await openAudit({ log: log(), file: null });
  audit.record(entry(1));
  await audit.close();
  expect(lines).toHaveLength(1);
  expect(JSON.parse(lines[0] ?? "")).toMatchObject({ target: "fluxvm_audit", ...entry(1) });
});

describe("the file", () => {
  test("gets the same lines, in order, and is private", async () => {
    const audit = await openAudit({ log: log(), file: file() });
    for (let n = 0; n < 100; n++) audit.record(entry(n));
    await audit.close();
    expect(numbersIn(file())).toEqual(Array.from({ length: 100 }, (_, n) => n));
    expect(JSON.parse(readFileSync(file(), "utf8").split("\n")[0] ?? "")).toMatchObject({
      target: "fluxvm_audit",
      ...entry(0),
    });
    expect(statSync(file()).mode & 0o777).toBe(0o600);
    const again = await openAudit({ log: log(), file: file() });
    again.record(entry(100));
    await again.close();
    expect(numbersIn(file()).at(-1)).toBe(100);
  });

  test("is rotated by size, keeps the newest files and loses no line in between", async () => {
    const audit = await openAudit({ log: log(), file: file(), fileMaxBytes: 2000, filesKept: 3 });
    for (let n = 0; n < 200; n++) {
      audit.record(entry(n));
      await Bun.sleep(0);
    }
    await audit.close();
    expect(readdirSync(directory).sort()).toEqual(["audit.log", "audit.log.1", "audit.log.2", "audit.log.3"]);
    const kept = [".3", ".2", ".1", ""].flatMap((suffix) => numbersIn(file() + suffix));
    expect(kept).toEqual(Array.from({ length: kept.length }, (_, n) => 200 - kept.length + n));
    for (const suffix of ["", ".1", ".2", ".3"]) expect(statSync(file() + suffix).size).toBeLessThanOrEqual(2000);
  });

  test("that cannot be opened keeps the agent from starting", async () => {
    expect(openAudit({ log: log(), file: `${directory}/missing/audit.log` })).rejects.toThrow("ENOENT");
    symlinkSync("/etc/hostname", file());
    expect(openAudit({ log: log(), file: file() })).rejects.toThrow("ELOOP");
  });

  test("that cannot be written is reported once, and the requests stay in the log", async () => {
    const audit = await openAudit({ log: log(), file: "/dev/full" });
    for (let n = 0; n < 3; n++) {
      audit.record(entry(n));
      await Bun.sleep(5);
    }
    await audit.close();
    const messages = lines.map((line) => (JSON.parse(line) as { msg: string }).msg);
    expect(messages.filter((message) => message === "request")).toHaveLength(3);
    expect(messages.filter((message) => message === "the audit file cannot be written")).toHaveLength(1);
    expect(existsSync("/dev/full.1")).toBe(false);
  });
});
