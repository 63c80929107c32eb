// Executions over HTTP: what is asked of the core, what a stream holds, and how it ends.
import { afterEach, describe, expect, test } from "bun:test";
import { AgentError } from "../../errors/agent-error.ts";
import type { HttpServer } from "../listen.ts";
import { AttachedStreams } from "../stream/attached.ts";
import { framings } from "../stream/framing.ts";
import { Harness } from "../testing/harness.ts";
import { RawClient } from "../testing/raw-client.ts";
import { executionRoutes } from "./routes.ts";

const MSGPACK = framings.msgpack.contentType;
const NDJSON = framings.ndjson.contentType;

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function setUp() {
  const harness = new Harness();
  const id = await harness.sandbox();
  return { harness, id, path: `/v1/sandboxes/${id}/executions` };
}

async function serve() {
  const { harness, id, path } = await setUp();
  const server: HttpServer = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  return { harness, id, server, url: `${server.url}${path}` };
}

type Frames = readonly Record<string, any>[];
const lines = (text: string): Frames =>
  text
    .split("\n")
    .filter(Boolean)
    .map((line) => JSON.parse(line));

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(2);
  }
}

describe("starting", () => {
  test("answers the execution, and the same one for the same id and command", async () => {
    const { harness, path } = await setUp();
    const json = { id: "e-1_A", argv: ["cat", "-"], env: { A: "b" }, cwd: "/w", stdin: true, timeout_seconds: 5 };
    const first = await harness.call("POST", path, { json });
    expect([first.status, first.json.id, first.json.argv, first.json.status]).toEqual([
      201,
      "e-1_A",
      ["cat", "-"],
      "running",
    ]);
    expect(first.json.stdin).toEqual({ bytes_written: 0, closed: false });
    const [execution] = [...harness.executions.all.values()];
    expect(execution!.request).toEqual({
      id: "e-1_A",
      argv: ["cat", "-"],
      env: { A: "b" },
      cwd: "/w",
      stdin: true,
      overflow: "ring",
      onDisconnect: undefined,
      timeoutSeconds: 5,
    });
    expect((await harness.call("POST", path, { json })).status).toBe(200);
    const other = await harness.call("POST", path, { json: { ...json, argv: ["true"] } });
    expect([other.status, other.json.code]).toEqual([409, "EXECUTION_EXISTS"]);
    expect((await harness.call("GET", path)).json.items).toHaveLength(1);
  });

  test.each([
    [{}, 400, "BAD_REQUEST"],
    [{ command: "true", argv: ["true"] }, 400, "BAD_REQUEST"],
    [{ command: "true", policy: {} }, 400, "BAD_REQUEST"],
    [{ command: "true", id: "a b" }, 400, "BAD_REQUEST"],
    [{ command: "true", tty: { cols: 0, rows: 1 } }, 400, "BAD_REQUEST"],
    [{ command: "true", tty: {} }, 422, "INVALID_FIELD"],
    [{ command: 1 }, 422, "INVALID_FIELD"],
    [{ command: "true", overflow: "spill" }, 422, "INVALID_FIELD"],
    [{ command: "x".repeat(1024 * 1024 + 1) }, 413, "COMMAND_TOO_LARGE"],
  ] as const)("refuses %#", async (json, status, code) => {
    const { harness, path } = await setUp();
    const answer = await harness.call("POST", path, { json });
    expect([answer.status, answer.json.code]).toEqual([status, code]);
    expect(harness.executions.all.size).toBe(0);
  });
});

describe("a stream", () => {
  test("that starts the command has it, its output and its end", async () => {
    const { harness, id, path } = await setUp();
    const answer = harness.call("POST", path, { json: { id: "e", command: "x" }, headers: { accept: NDJSON } });
    await until(() => harness.executions.all.has(`${id}/e`));
    const execution = harness.executions.all.get(`${id}/e`)!;
    execution.write("stdout", "out");
    execution.write("stderr", new Uint8Array([0xff]));
    execution.exit({ exitCode: 3 });
    const { status, headers, text } = await answer;
    expect([status, headers.get("content-type")]).toEqual([201, NDJSON]);
    const [started, ...rest] = lines(text);
    expect([started!.type, started!.execution.id, started!.execution.status]).toEqual(["started", "e", "running"]);
    expect(rest).toEqual([
      { type: "output", channel: "stdout", offset: 0, data_base64: "b3V0" },
      { type: "output", channel: "stderr", offset: 0, data_base64: "/w==" },
      { type: "exited", exit_code: 3, timed_out: false, output_open: false },
    ]);
    expect(execution.request.overflow).toBe("block");
    expect(execution.attached[0]).toMatchObject({ role: "starter", from: { stdout: 0, stderr: 0 } });
  });

  test.each([NDJSON, MSGPACK, "text/event-stream"])("as %s goes on from the offsets", async (accept) => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    execution.write("stdout", "abcdef");
    execution.write("stderr", "xyz");
    execution.exit({ signal: 9 });
    const query = "stdout_offset=4&stderr_offset=3&incarnation=0";
    const answer = await harness.call("GET", `${path}/e/stream?${query}`, { headers: { accept } });
    expect([answer.status, answer.headers.get("content-type")]).toEqual([200, accept]);
    expect(execution.attached[0]).toMatchObject({ role: "reader", incarnation: 0, from: { stdout: 4, stderr: 3 } });
    if (accept !== NDJSON) return;
    expect(lines(answer.text).slice(1)).toEqual([
      { type: "output", channel: "stdout", offset: 4, data_base64: "ZWY=" },
      { type: "exited", signal: 9, timed_out: false, output_open: false },
    ]);
  });

  test("with offsets of another incarnation is refused", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    execution.revert();
    execution.exit();
    const answer = await harness.call("GET", `${path}/e/stream?incarnation=0`);
    expect([answer.status, answer.json.code]).toEqual([409, "REVERTED"]);
    const { text } = await harness.call("GET", `${path}/e/stream?incarnation=1`);
    expect(lines(text)[0]).toMatchObject({ type: "started", execution: { incarnation: 1 } });
  });

  test("shows a terminal's output as one channel", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e", { command: "sh", tty: { cols: 80, rows: 24 } });
    execution.write("stdout", "$ ");
    execution.exit();
    const { text } = await harness.call("GET", `${path}/e/stream`);
    expect(lines(text)[1]).toEqual({ type: "output", channel: "pty", offset: 0, data_base64: "JCA=" });
  });

  test("takes over from the starter only when asked to", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    execution.exit();
    await harness.call("GET", `${path}/e/stream?role=starter`);
    expect(execution.attached[0]!.role).toBe("starter");
  });

  test("ends with an error when the end was not seen, never with an exit", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    execution.write("stdout", "half");
    execution.fail(new AgentError("SANDBOX_GONE"));
    const { text } = await harness.call("GET", `${path}/e/stream`);
    const ends = lines(text).filter(({ type }) => type === "exited" || type === "error");
    expect(ends).toEqual([{ type: "error", code: "SANDBOX_GONE", message: "the sandbox has ended" }]);
    expect(lines(text).at(-1)).toEqual(ends[0]!);
  });

  test("of an unknown execution, or one whose id cannot be, is a 404 before anything is sent", async () => {
    const { harness, path } = await setUp();
    for (const eid of ["none", "a.b", "x".repeat(65), "%ff", "a%2Fb"]) {
      for (const route of ["", "/stream", "/stdin"]) {
        const answer = await harness.call("GET", `${path}/${eid}${route}`);
        expect([eid, route, answer.status, answer.json.code]).toEqual([eid, route, 404, "EXECUTION_NOT_FOUND"]);
      }
    }
  });

  test("beyond the cap of a token is refused, and starts nothing", async () => {
    const { harness, id } = await setUp();
    const streams = new AttachedStreams(1);
    const routes = executionRoutes(harness.executions, harness.log, streams);
    const start = routes.find(({ method, path }) => method === "POST" && path.endsWith("/executions"))!;
    const call = (executionId: string, actor: string) => {
      const request = new Request("http://localhost/", { headers: { accept: NDJSON } });
      const body = { id: executionId, command: "x" };
      const caller = { ...adminCaller, token: actor };
      return start.handler({
        caller,
        id,
        body,
        request,
        params: {},
        query: {},
        idempotency: undefined,
      }) as Promise<Response>;
    };
    const first = await call("one", "a");
    await expect(call("two", "a")).rejects.toMatchObject({ code: "STREAMS_EXHAUSTED" });
    expect(harness.executions.all.has(`${id}/two`)).toBe(false);
    await (await call("three", "b")).body!.cancel();
    await first.body!.cancel();
    await (await call("two", "a")).body!.cancel();
  });
});

const adminCaller = { actor: "test", role: "admin", tenant: null, token: null } as const;

describe("a client", () => {
  test("that leaves ends its reader", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const abort = new AbortController();
    const response = await fetch(`${url}/e/stream`, { signal: abort.signal });
    await response.body!.getReader().read();
    await until(() => execution.attached.length === 1);
    abort.abort();
    await until(() => execution.attached[0]!.signal.aborted);
  });

  test("that leaves while its command starts ends its reader too", async () => {
    const { harness, id, url } = await serve();
    const gate = Promise.withResolvers<void>();
    harness.executions.gate = gate.promise;
    const abort = new AbortController();
    const body = JSON.stringify({ id: "e", command: "x" });
    const started = fetch(url, { method: "POST", headers: { accept: NDJSON }, body, signal: abort.signal });
    await until(() => harness.executions.starts === 1);
    abort.abort();
    await started.catch(() => {});
    await Bun.sleep(50);
    gate.resolve();
    await until(() => harness.executions.all.get(`${id}/e`)?.attached[0]?.signal.aborted === true);
  });

  test("that leaves is not waited for any more", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    let slices = 0;
    harness.executions.waitExecution = async () => {
      slices += 1;
      await Bun.sleep(5);
      return execution.state;
    };
    const abort = new AbortController();
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ timeout_ms: 600_000 });
    const waiting = fetch(`${url}/e/wait`, { method: "POST", headers, body, signal: abort.signal }).catch(() => {});
    await until(() => slices > 2);
    abort.abort();
    await waiting;
    await Bun.sleep(100);
    const before = slices;
    await Bun.sleep(50);
    expect(slices).toBe(before);
  });

  test("that asks for the head only has no reader", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const response = await fetch(`${url}/e/stream`, { method: "HEAD", headers: { accept: MSGPACK } });
    expect([response.status, response.headers.get("content-type")]).toEqual([200, MSGPACK]);
    expect(execution.attached[0]!.signal.aborted).toBe(true);
  });

  test("that does not read is given no more than fits its connection", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const piece = new Uint8Array(256 * 1024);
    for (let n = 0; n < 256; n++) execution.write("stdout", piece);
    const client = await RawClient.open(url);
    cleanups.push(() => client.close());
    client.socket.pause();
    const target = new URL(`${url}/e/stream`).pathname;
    await client.send(`GET ${target} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: ${MSGPACK}\r\n\r\n`);
    await until(() => execution.framesRead > 0);
    let before = -1;
    while (before !== execution.framesRead) {
      before = execution.framesRead;
      await Bun.sleep(150);
    }
    expect(execution.framesRead).toBeLessThan(64);
    // Another reader goes on all the same.
    execution.exit();
    const whole = await fetch(`${url}/e/stream`, { headers: { accept: MSGPACK } });
    expect((await whole.arrayBuffer()).byteLength).toBeGreaterThan(256 * piece.length);
  });

  test("sees an error as the last frame when the server ends", async () => {
    const { harness, id, server, url } = await serve();
    harness.executions.add(id, "e");
    const response = await fetch(`${url}/e/stream`);
    const text = response.text();
    await Bun.sleep(20);
    await server.stop(5000);
    expect(lines(await text).at(-1)).toMatchObject({ type: "error", code: "SHUTTING_DOWN" });
  });
});

describe("stdin", () => {
  test("takes bytes by offset, drops what it has, and tells where to go on", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    const put = (query: string, raw: string) => harness.call("PUT", `${path}/e/stdin${query}`, { raw });
    expect((await put("?offset=0", "abc")).json).toEqual({ bytes_written: 3, closed: false });
    expect((await put("?offset=1", "bcd")).json).toEqual({ bytes_written: 4, closed: false });
    expect((await put("", "ef")).json).toEqual({ bytes_written: 6, closed: false });
    const gap = await put("?offset=9", "z");
    expect([gap.status, gap.json.code, gap.json.details]).toEqual([416, "STDIN_GAP", { accepted: 6 }]);
    expect((await put("?offset=6&eof=true", "")).json).toEqual({ bytes_written: 6, closed: true });
    expect((await put("?offset=6", "x")).json.code).toBe("STDIN_CLOSED");
    expect((await harness.call("GET", `${path}/e/stdin`)).json).toEqual({ bytes_written: 6, closed: true });
    expect(Buffer.concat(execution.stdin).toString()).toBe("abcdef");
  });

  test("of a client that leaves is given up", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    execution.stdinGate = new Promise(() => {});
    const client = new AbortController();
    const upload = fetch(`${url}/e/stdin?offset=0`, { method: "PUT", body: "abc", signal: client.signal });
    const deadline = Date.now() + 5000;
    while (execution.asked.length === 0 && Date.now() < deadline) await Bun.sleep(2);
    expect(execution.asked[0]?.signal?.aborted).toBe(false);
    client.abort();
    await expect(upload).rejects.toThrow();
    while (execution.asked[0]?.signal?.aborted === false && Date.now() < deadline) await Bun.sleep(2);
    expect(execution.asked[0]?.signal?.aborted).toBe(true);
  });

  test("of a process that does not read holds up the client", async () => {
    const { harness, id, url } = await serve();
    const execution = harness.executions.add(id, "e");
    const gate = Promise.withResolvers<void>();
    execution.stdinGate = gate.promise;
    const total = 64 * 1024 * 1024;
    let sent = 0;
    const body = new ReadableStream({
      pull(controller) {
        if (sent === total) return controller.close();
        sent += 1024 * 1024;
        controller.enqueue(new Uint8Array(1024 * 1024));
      },
    });
    const upload = fetch(`${url}/e/stdin?offset=0&eof=true`, { method: "PUT", body });
    await Bun.sleep(300);
    expect(sent).toBeLessThan(total);
    gate.resolve();
    expect(await (await upload).json()).toEqual({ bytes_written: total, closed: true });
  });
});

describe("a running execution", () => {
  test("gets signals by name and number", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    for (const signal of ["TERM", "SIGINT", 64]) {
      expect((await harness.call("POST", `${path}/e/signal`, { json: { signal } })).status).toBe(200);
    }
    expect(execution.signals).toEqual([15, 2, 64]);
    for (const signal of ["NOPE", "", 0, 65, -1]) {
      expect((await harness.call("POST", `${path}/e/signal`, { json: { signal } })).json.code).toBe("BAD_REQUEST");
    }
    execution.exit();
    const late = await harness.call("POST", `${path}/e/signal`, { json: { signal: 15 } });
    expect([late.status, late.json.code]).toEqual([412, "EXECUTION_EXITED"]);
  });

  test("is resized when it has a terminal", async () => {
    const { harness, id, path } = await setUp();
    const json = { cols: 100, rows: 40 };
    harness.executions.add(id, "plain");
    expect((await harness.call("POST", `${path}/plain/resize`, { json })).json.code).toBe("TTY_REQUIRED");
    const execution = harness.executions.add(id, "e", { command: "sh", tty: { cols: 80, rows: 24 } });
    expect((await harness.call("POST", `${path}/e/resize`, { json })).status).toBe(200);
    expect(execution.sizes).toEqual([json]);
  });

  test("is waited for, for a time at most", async () => {
    const { harness, id, path } = await setUp();
    const execution = harness.executions.add(id, "e");
    const wait = (timeout_ms: number) => harness.call("POST", `${path}/e/wait`, { json: { timeout_ms } });
    expect((await wait(0)).json.status).toBe("running");
    expect((await wait(20)).json).toMatchObject({ status: "running", exit_code: null, exited_at: null });
    const waiting = wait(10_000);
    execution.exit({ exitCode: 7, outputOpen: true });
    expect((await waiting).json).toMatchObject({ status: "exited", exit_code: 7, output_open: true });
    expect((await wait(-1)).json.code).toBe("BAD_REQUEST");
  });
});
