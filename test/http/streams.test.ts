// The rules of streams over real sockets: what clients ask for and get in each form, failures in the middle, requests
// that are sent ahead, and heads alone.
import { afterEach, describe, expect, test } from "bun:test";
import { unpack } from "msgpackr";
import { limits } from "../../src/config/limits.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { framings } from "../../src/http/stream/framing.ts";
import { Harness } from "../../src/http/testing/harness.ts";
import { RawClient } from "../../src/http/testing/raw-client.ts";

const MSGPACK = framings.msgpack.contentType;
const NDJSON = framings.ndjson.contentType;
const SSE = framings.serverSentEvents.contentType;

const cleanups: (() => unknown)[] = [];

afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

async function serve() {
  const harness = new Harness();
  const id = await harness.sandbox();
  const server = await harness.http.listen();
  cleanups.push(() => server.stop(0));
  return { harness, id, server, base: server.url, path: `/v1/sandboxes/${id}` };
}

async function until(holds: () => boolean): Promise<void> {
  const deadline = Date.now() + 5000;
  while (!holds()) {
    if (Date.now() > deadline) throw new Error("it did not come about");
    await Bun.sleep(2);
  }
}

async function raw(url: string): Promise<RawClient> {
  const client = await RawClient.open(url);
  cleanups.push(() => client.close());
  return client;
}

const get = (path: string, headers = ""): string => `GET ${path} HTTP/1.1\r\nHost: 127.0.0.1\r\n${headers}\r\n`;

/** The maps of a whole stream in one of the three forms. */
function framesIn(type: string, bytes: Uint8Array): Record<string, any>[] {
  if (type === MSGPACK) {
    const frames = [];
    for (let rest = Buffer.from(bytes); rest.length > 0;) {
      const length = rest.readUInt32BE(0);
      frames.push(unpack(rest.subarray(4, 4 + length)));
      rest = rest.subarray(4 + length);
    }
    return frames;
  }
  return Buffer.from(bytes)
    .toString()
    .split("\n")
    .map((line) => (type === SSE ? line.replace(/^data: /, "") : line))
    .filter((line) => line.startsWith("{"))
    .map((line) => JSON.parse(line));
}

describe("a failure in the middle", () => {
  test.each([MSGPACK, NDJSON, SSE])("is the one last frame of %s, behind what came before", async (accept) => {
    const { harness, id, base, path } = await serve();
    const execution = harness.executions.add(id, "e");
    execution.write("stdout", "half");
    const response = await fetch(`${base}${path}/executions/e/stream`, { headers: { accept } });
    const body = response.arrayBuffer();
    await until(() => execution.framesRead === 1);
    execution.fail(new AgentError("GUEST_UNREACHABLE", "it fell silent"));
    const frames = framesIn(accept, new Uint8Array(await body));
    expect(frames.map(({ type }) => type)).toEqual(["started", "output", "error"]);
    expect(frames.at(-1)).toEqual({ type: "error", code: "GUEST_UNREACHABLE", message: "it fell silent" });
  });

  test.each([MSGPACK, NDJSON, SSE])("of the agent itself shows nothing of its cause in %s", async (accept) => {
    const { harness, id, base, path } = await serve();
    harness.executions.add(id, "e");
    harness.executions.attachExecution = async () => ({
      next: () => Promise.reject(new Error("/host/secret is broken")),
    });
    const response = await fetch(`${base}${path}/executions/e/stream`, { headers: { accept } });
    const frames = framesIn(accept, new Uint8Array(await response.arrayBuffer()));
    expect(frames.map(({ type }) => type)).toEqual(["started", "error"]);
    expect(frames.at(-1)).toEqual({ type: "error", code: "INTERNAL", message: "internal error" });
  });
});

describe("what is asked for", () => {
  test.each([
    ["*/*", NDJSON],
    ["", NDJSON],
    ["application/json", NDJSON],
    ["text/html;q=0.9, application/x-ndjson;q=0.2, text/event-stream;q=0.3", SSE],
    [`APPLICATION/X-NDJSON; charset=utf-8;Q=0.2, ${MSGPACK} ; q=0.9`, MSGPACK],
    [`${MSGPACK};q=0, text/event-stream;q=0.001`, SSE],
    [`${MSGPACK};q=0`, NDJSON],
  ])("by Accept: %s of a stream route", async (accept, type) => {
    const { harness, id, base, path } = await serve();
    harness.executions.add(id, "e").exit();
    const response = await fetch(`${base}${path}/executions/e/stream`, { headers: { accept } });
    expect([response.status, response.headers.get("content-type")]).toEqual([200, type]);
    await response.body!.cancel();
  });

  test.each(["*/*", "application/json", `${MSGPACK};q=0`])("by Accept: %s of a start is no stream", async (accept) => {
    const { base, path } = await serve();
    const response = await fetch(`${base}${path}/executions`, {
      method: "POST",
      headers: { accept },
      body: JSON.stringify({ command: "x" }),
    });
    expect(response.status).toBe(201);
    expect(response.headers.get("content-type")).toStartWith("application/json");
    expect(((await response.json()) as { status: string }).status).toBe("running");
  });
});

// The server answers one request of a connection at a time; what comes before it has ended it does not queue.
describe("a request that is sent ahead of a stream's end", () => {
  test.each(["at once", "later"])("cuts the stream, which never looks complete: %s", async (when) => {
    const { harness, id, base, path } = await serve();
    const execution = harness.executions.add(id, "e");
    execution.write("stdout", "one");
    const client = await raw(base);
    const stream = get(`${path}/executions/e/stream`, `Accept: ${NDJSON}\r\n`);
    const ahead = get(`${path}/executions/e/stream?role=starter`);
    if (when === "at once") await client.send(stream + ahead);
    else {
      await client.send(stream);
      await until(() => client.received.includes('"output"'));
      await client.send(ahead);
    }
    await client.closed;
    execution.exit();
    expect(client.received).not.toMatch(/\r\n0\r\n\r\n$/);
    expect(client.received).not.toContain('"type":"exited"');
    // Nothing of it stays, and the request that was sent ahead was not served.
    await until(() => execution.attached.every(({ signal }) => signal.aborted));
    expect(execution.attached.map(({ role }) => role)).toEqual(["reader"]);
  });

  test("behind its end is answered on the same connection", async () => {
    const { harness, id, base, path } = await serve();
    harness.executions.add(id, "e").exit();
    const client = await raw(base);
    await client.send(get(`${path}/executions/e/stream`));
    await until(() => client.received.endsWith("\r\n0\r\n\r\n"));
    await client.send(get("/healthz"));
    await until(() => client.received.endsWith('{"ok":true}'));
    expect(client.received.match(/HTTP\/1\.1 200 OK/g)).toHaveLength(2);
  });
});

describe("the cap of a token", () => {
  const upgrade = {
    upgrade: "websocket",
    connection: "upgrade",
    "sec-websocket-version": "13",
    "sec-websocket-key": "x",
  };

  test("counts every kind of stream, and no other token's", async () => {
    const tokens = ["t-one", "t-other"].map((token) => ({ token, role: "admin" }));
    const harness = new Harness({ auth: { tokens } });
    const id = await harness.sandbox();
    harness.executions.add(id, "e");
    const open = (token: string, path: string, headers: Record<string, string> = {}, body?: string) =>
      harness.http.app.handle(
        new Request(`http://127.0.0.1${path}`, {
          method: body === undefined ? "GET" : "POST",
          headers: { authorization: `Bearer ${token}`, ...headers },
          body,
        }),
      );
    const attached = await Promise.all(
      Array.from({ length: limits.attachedStreamsPerTokenMax }, () => open("t-one", "/v1/events/stream")),
    );
    cleanups.push(() => Promise.all(attached.map(({ body }) => body!.cancel())));
    const kinds: [string, Record<string, string>?, string?][] = [
      ["/v1/events/stream"],
      [`/v1/sandboxes/${id}/files/watch?path=/`],
      [`/v1/sandboxes/${id}/executions/e/stream`],
      [`/v1/sandboxes/${id}/executions/e/ws`, upgrade],
      [`/v1/sandboxes/${id}/executions`, { accept: NDJSON }, JSON.stringify({ id: "new", command: "x" })],
    ];
    for (const [path, headers, body] of kinds) {
      const refused = await open("t-one", path, headers, body);
      const { code } = (await refused.json()) as { code: string };
      expect([path, refused.status, code]).toEqual([path, 429, "STREAMS_EXHAUSTED"]);
    }
    expect(harness.executions.all.has(`${id}/new`)).toBe(false);
    const other = await open("t-other", "/v1/events/stream");
    expect(other.status).toBe(200);
    await other.body!.cancel();
    await attached.pop()!.body!.cancel();
    const next = await open("t-one", "/v1/events/stream");
    expect(next.status).toBe(200);
    attached.push(next);
  });
});

describe("a head alone", () => {
  test.each([
    "/v1/sandboxes/ID/executions/e/stream",
    "/v1/sandboxes/ID/files/watch?path=/",
    "/v1/events/stream",
    "/v1/network/flows/stream",
  ])("of %s leaves nothing open", async (route) => {
    const { harness, id, server } = await serve();
    const execution = harness.executions.add(id, "e");
    const response = await fetch(`${server.url}${route.replace("ID", id)}`, { method: "HEAD" });
    expect([response.status, await response.text()]).toEqual([200, ""]);
    expect(execution.attached.every(({ signal }) => signal.aborted)).toBe(true);
    // A stream that were open would get its last frame, and be waited for.
    const began = performance.now();
    await server.stop(3_000);
    expect(performance.now() - began).toBeLessThan(1_000);
  });
});
