// The client against servers that lie: it fails with a word for it, soon, and hands on no byte twice.
import { afterEach, describe, expect, test } from "bun:test";
import type { Server, ServerWebSocket } from "bun";
import { framings } from "../../src/http/stream/framing.ts";
import { ApiError, FluxVm } from "./client.ts";
import { readFrames } from "./frames.ts";

const servers: Server<undefined>[] = [];
afterEach(async () => {
  for (const server of servers.splice(0)) await server.stop(true);
});

const encoded = (frame: object): Uint8Array => Buffer.concat(framings.msgpack.encode(frame as never));
const started = { type: "started", execution: { incarnation: 0 } };
const output = (offset: unknown, data: unknown = Buffer.from("ab")) => ({
  ...{ type: "output", channel: "stdout" },
  ...{ offset, data },
});
const garbage = Uint8Array.from([0, 0, 0, 2, 0xc1, 0xc1]);

interface Lies {
  /** Bodies of the streams that are asked for, one after the other; the last one again and again. */
  readonly streams?: readonly (readonly Uint8Array[])[];
  readonly answer?: (request: Request, count: number) => Response;
  /** Messages of each WebSocket, which is closed behind them. */
  readonly messages?: readonly (string | Uint8Array)[];
}

function lying({ streams = [], answer, messages = [] }: Lies) {
  const counts = { requests: 0, sockets: 0 };
  const server = Bun.serve({
    port: 0,
    fetch(request, self) {
      if (request.headers.has("upgrade") && self.upgrade(request)) return undefined;
      const { pathname } = new URL(request.url);
      if (pathname.endsWith("/stdin")) return Response.json({ bytes_written: 0, closed: false });
      const count = counts.requests++;
      if (answer !== undefined) return answer(request, count);
      if (!pathname.endsWith("/stream")) return Response.json({ incarnation: 0 });
      return new Response(Buffer.concat(streams[Math.min(count, streams.length - 1)] ?? []));
    },
    websocket: {
      open(socket: ServerWebSocket<undefined>) {
        counts.sockets++;
        for (const message of messages) socket.send(message as string);
        socket.close();
      },
      message() {},
    },
  });
  servers.push(server);
  const sandbox = new FluxVm({ url: server.url.origin }).sandbox("box");
  return { counts, sandbox };
}

/** What came before the failure, as text, and the failure. */
async function outcome(frames: AsyncIterable<{ type: string; data?: Uint8Array } | Uint8Array>) {
  let text = "";
  try {
    for await (const frame of frames) {
      const data = frame instanceof Uint8Array ? frame : frame.data;
      if (data !== undefined) text += Buffer.from(data).toString();
    }
  } catch (error) {
    return { text, error: error as { code?: string; name: string } };
  }
  return { text, error: null };
}

describe("a stream", () => {
  test.each([
    ["garbage", [garbage], ""],
    ["a frame without a type", [encoded({ typ: "output" })], ""],
    ["a frame that is too long", [Uint8Array.from([0xff, 0, 0, 0, 1])], ""],
    ["bytes that came already", [encoded(started), encoded(output(0)), encoded(output(1))], "ab"],
    ["an offset that is none", [encoded(started), encoded(output("0"))], ""],
    ["output that is no bytes", [encoded(started), encoded(output(0, "ab"))], ""],
  ])("of %s fails at once", async (_, body, text) => {
    const { sandbox, counts } = lying({ streams: [body] });
    const { text: seen, error } = await outcome(sandbox.executions.get("e").frames());
    expect([seen, error?.code, counts.requests]).toEqual([text, "STREAM_INVALID", 1]);
  });

  test("that begins anew after a cut delivers nothing twice", async () => {
    const { sandbox } = lying({ streams: [[encoded(started), encoded(output(0))]] });
    const { text, error } = await outcome(sandbox.executions.get("e").frames());
    expect([text, error?.code]).toEqual(["ab", "STREAM_INVALID"]);
  });

  test("that never says anything is given up, without hurry", async () => {
    const { sandbox, counts } = lying({ streams: [[]] });
    const { error } = await outcome(sandbox.executions.get("e", { resumeMs: 300 }).frames());
    expect(error?.name).toBe("UnreachableError");
    expect(counts.requests).toBeWithin(2, 8);
  });

  test("of frames that nobody knows is read over", async () => {
    const body = new Blob([encoded({ type: "new" }) as Uint8Array<ArrayBuffer>]).stream();
    const seen = [];
    for await (const frame of readFrames(body, 1000)) seen.push(frame.type);
    expect(seen).toEqual(["new"]);
  });
});

describe("a WebSocket", () => {
  const bare = (frame: object) => encoded(frame).subarray(4);
  test.each([
    ["text", ["hello"]],
    ["garbage", [garbage.subarray(4)]],
    ["bytes that came already", [bare(started), bare(output(0)), bare(output(0))]],
  ])("of %s fails at once", async (_, messages) => {
    const { sandbox, counts } = lying({ messages });
    const { error } = await outcome(sandbox.socket("e").frames());
    expect([error?.code, counts.sockets]).toEqual(["STREAM_INVALID", 1]);
  });

  test("whose far side has fallen silent is left all the same, and cut", async () => {
    const requests: string[] = [];
    const gone = Promise.withResolvers<void>();
    const answer = (request: string): string => {
      const key = /^sec-websocket-key: (.*)\r$/im.exec(request)?.[1];
      const status = '{"bytes_written":0,"incarnation":0}';
      if (key === undefined) return `HTTP/1.1 200 OK\r\ncontent-length: ${status.length}\r\n\r\n${status}`;
      const accept = new Bun.CryptoHasher("sha1").update(`${key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11`).digest("base64");
      return [
        "HTTP/1.1 101 Switching Protocols",
        "upgrade: websocket",
        "connection: upgrade",
        "sec-websocket-protocol: fluxvm.stream.msgpack",
        `sec-websocket-accept: ${accept}`,
        "\r\n",
      ].join("\r\n");
    };
    const silent = Bun.listen({
      hostname: "127.0.0.1",
      port: 0,
      socket: {
        data(socket, bytes) {
          const text = bytes.toString("latin1");
          if (!text.startsWith("GET ")) return;
          requests.push(text);
          socket.write(answer(text));
        },
        close: () => {
          if (requests.some((request) => request.includes("/ws?"))) gone.resolve();
        },
      },
    });
    const socket = new FluxVm({ url: `http://127.0.0.1:${silent.port}` }).sandbox("box").socket("e");
    const reading = outcome(socket.frames());
    while (!requests.some((request) => request.includes("/ws?"))) await Bun.sleep(2);
    await Bun.sleep(50);
    socket.close();
    expect((await reading).error).toBeNull();
    await gone.promise;
    silent.stop(true);
  });

  test("that never says anything is given up, without hurry", async () => {
    const { sandbox, counts } = lying({});
    const { error } = await outcome(sandbox.socket("e", { resumeMs: 300 }).frames());
    expect(error?.name).toBe("UnreachableError");
    expect(counts.sockets).toBeWithin(2, 8);
  });

  test("that says little is not made again in a hurry", async () => {
    const { sandbox, counts } = lying({ messages: [bare({ type: "keep_alive" })] });
    const socket = sandbox.socket("e");
    const reading = outcome(socket.frames());
    await Bun.sleep(700);
    socket.close();
    await reading;
    expect(counts.sockets).toBeWithin(2, 6);
  });
});

test.each(["..", ".", ""])("the name %p leads nowhere", (name) => {
  const client = new FluxVm({ url: "http://127.0.0.1:1" });
  expect(() => client.sandbox(name)).toThrow("names nothing");
  expect(() => client.sandbox("box").executions.get(name)).toThrow("names nothing");
  expect(client.sandbox("box").snapshots.remove(name)).rejects.toThrow("names nothing");
});

describe("a download", () => {
  const ranged = (range: string, text: string) =>
    new Response(text, { status: 206, headers: { "content-range": `bytes ${range}` } });

  test("of another range than that asked for hands on none of it", async () => {
    const { sandbox } = lying({ answer: (_, count) => ranged("0-3/4", count === 0 ? "ab" : "abcd") });
    const { text, error } = await outcome(sandbox.files.stream("/f"));
    expect([text, error?.code]).toEqual(["ab", "REPLY_INVALID"]);
  });

  test("that is longer than it says is refused", async () => {
    const { sandbox } = lying({ answer: () => ranged("0-1/2", "abc") });
    expect((await outcome(sandbox.files.stream("/f"))).error).toBeInstanceOf(ApiError);
  });

  test("that brings nothing is given up, without hurry", async () => {
    const { sandbox, counts } = lying({ answer: () => ranged("0-1/2", "") });
    const { error } = await outcome(sandbox.files.stream("/f", { resumeMs: 300 }));
    expect(error?.name).toBe("UnreachableError");
    expect(counts.requests).toBeWithin(2, 8);
  });
});
