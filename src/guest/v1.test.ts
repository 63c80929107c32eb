import { afterEach, describe, expect, test } from "bun:test";
import type { ExecRequest, GuestChannel } from "../contracts/channel.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { createGuestConnector } from "./connector.ts";
import { failure } from "./testing/harness.ts";
import { FakePeer } from "./testing/peer.ts";

const TOKEN = "secret-token-value";
const opened: (() => void)[] = [];

afterEach(() => {
  for (const close of opened.splice(0)) close();
});

type Request = Record<string, unknown>;

/** A guest that only speaks version 1: answers each line, what is not JSON with an error. */
async function connect(reply: (request: Request) => string | null): Promise<GuestChannel> {
  const peer = new FakePeer(async (c) => {
    const line = await c.line();
    const answer = line.startsWith("{")
      ? reply(JSON.parse(line) as Request)
      : '{"result":"error","message":"bad json"}';
    if (answer !== null) c.write(Buffer.from(`${answer}\n`));
    else c.cut();
  });
  opened.push(() => peer.stop());
  return createGuestConnector().unix({ path: peer.path, token: TOKEN, connectTimeoutMs: 1000 });
}

const path = new TextEncoder().encode("/ü");
const run = (fields: Partial<ExecRequest> = {}): ExecRequest => ({
  command: "x",
  timeoutMs: 0,
  outputMaxBytes: 100,
  ...fields,
});
const reply = (result: string, fields: Request = {}) => JSON.stringify({ result, ...fields });

describe("a guest of version 1", () => {
  test("is recognised, and cannot list files", async () => {
    const channel = await connect(() => reply("pong"));
    await channel.ping();
    expect(channel.features.has("manifest")).toBe(false);
    const sink = { entry: () => {}, difference: () => {}, drained: () => Promise.resolve() };
    const error = await failure(channel.manifest({ paths: [], filesMax: 1, listingMaxBytes: 1 }, sink));
    expect(error.code).toBe("NOT_SUPPORTED");
  });

  test("runs commands", async () => {
    const asked: Request[] = [];
    const channel = await connect((request) => {
      asked.push(request);
      return reply("exec", { exit_code: 130, stdout: "é".repeat(60), stderr: "e" });
    });
    const result = await channel.exec(run({ timeoutMs: 1500, env: { A: "b" } }));
    expect(asked).toEqual([{ op: "exec", command: "x", env: { A: "b" }, timeout_seconds: 2, token: TOKEN }]);
    expect(result).toMatchObject({ exitCode: 130, signal: null, timedOut: false, stdoutLength: 120, stderrLength: 1 });
    expect(result.stdout).toHaveLength(100);
  });

  test("124 is a timeout only when the time was up", async () => {
    const early = await connect(() => reply("exec", { exit_code: 124, stdout: "", stderr: "" }));
    expect(await early.exec(run({ timeoutMs: 60_000 }))).toMatchObject({ exitCode: 124, timedOut: false });
    const late = await connect(() => {
      Bun.sleepSync(1010);
      return reply("exec", { exit_code: 124, stdout: "", stderr: "" });
    });
    expect(await late.exec(run({ timeoutMs: 1000 }))).toMatchObject({ exitCode: null, timedOut: true });
  });

  test("reads and writes files", async () => {
    const content = crypto.getRandomValues(new Uint8Array(200_000));
    const files = new Map<unknown, unknown>();
    const channel = await connect((request) => {
      if (request.op === "put-file") {
        files.set(request.path, request.content_base64);
        return reply("file-written");
      }
      return reply("file-content", { content_base64: files.get(request.path), mode: 0o100644 & 0o7777 });
    });
    await channel.writeFile(path, content, 0o644, 1_000_000);
    const file = await channel.readFile(path, 1_000_000);
    expect(file.mode).toBe(0o644);
    expect(Buffer.compare(file.content, content)).toBe(0);
    expect((await failure(channel.readFile(path, 10))).code).toBe("FILE_TOO_LARGE");
    expect((await failure(channel.writeFile(path, content, 0o644, 10))).code).toBe("FILE_TOO_LARGE");
    expect((await failure(channel.readFile(new Uint8Array([0x2f, 0xff]), 10))).code).toBe("PATH_INVALID");
  });

  test("resets its identity and shuts down", async () => {
    const channel = await connect(({ op }) =>
      op === "shutdown" ? reply("shutting-down") : reply("identity-reset", { applied: ["hostname"], failures: [] }),
    );
    const request = { hostname: "h", regenerateMachineId: false, reseedEntropy: true };
    expect(await channel.resetIdentity(request)).toEqual({ applied: ["hostname"], failures: [] });
    await channel.shutdown(100);
  });

  test.each<[string, string | null, string]>([
    ["its own error", reply("error", { message: "unauthorized: bad\ntoken" }), "GUEST_ERROR"],
    ["another result", reply("pong"), "GUEST_ERROR"],
    ["an array", "[]", "GUEST_ERROR"],
    ["noise", "\u0000\u0001", "GUEST_ERROR"],
    ["missing fields", reply("exec", { exit_code: 0 }), "GUEST_ERROR"],
    ["an exit code of the wrong type", reply("exec", { exit_code: "0", stdout: "", stderr: "" }), "GUEST_ERROR"],
    ["a close", null, "GUEST_UNREACHABLE"],
  ])("that answers with %s fails the call", async (_, answer, code) => {
    const channel = await connect(() => answer);
    const error = await failure(channel.exec(run()));
    expect(error.code).toBe(code as AgentError["code"]);
    expect(error.message).not.toMatch(/\p{Cc}/u);
    expect(error.message).not.toContain(TOKEN);
  });
});
