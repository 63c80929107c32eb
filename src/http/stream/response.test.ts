import { afterEach, describe, expect, test } from "bun:test";
import type { Logger } from "../../contracts/log.ts";
import { silentLog } from "../../telemetry/silent-log.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../../sandbox/operations.ts";
import { AttachedStreams } from "./attached.ts";
import type { Frame, FrameSource } from "./frame.ts";
import { type Framing, framings } from "./framing.ts";
import { endOf } from "./lasting.ts";
import { streamResponse } from "./response.ts";

const caller: Caller = { actor: "a", role: "admin", tenant: null, token: "a" };
const logged: unknown[] = [];
const log: Logger = {
  ...silentLog,
  error: (...line: unknown[]) => void logged.push(line),
  child: () => log,
};

/** A source that answers from a list; `hangs` when the list is used up. */
class ListSource implements FrameSource {
  asked = 0;
  closed = 0;
  #waiting: ((frame: Frame | null) => void) | null = null;

  constructor(
    readonly frames: (Frame | null | Error)[],
    readonly hangs = false,
  ) {}

  next(): Promise<Frame | null> {
    this.asked += 1;
    const frame = this.frames.shift();
    if (frame instanceof Error) return Promise.reject(frame);
    if (frame === undefined && this.hangs) return new Promise((resolve) => (this.#waiting = resolve));
    return Promise.resolve(frame ?? null);
  }

  answer(frame: Frame | null): void {
    this.#waiting?.(frame);
  }

  close(): void {
    this.closed += 1;
  }
}

function respond(source: FrameSource, streams = new AttachedStreams(1), keepAliveMs = 10_000): Response {
  return streamResponse(source, { framing: framings.ndjson, place: streams.take(caller), log, keepAliveMs });
}

const lines = (text: string): Frame[] =>
  text
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line));

describe("a stream", () => {
  test("ends after the last frame and gives its place back", async () => {
    const streams = new AttachedStreams(1);
    const source = new ListSource([{ type: "ready" }, { type: "exited", exit_code: 0 }]);
    const response = respond(source, streams);
    expect(() => streams.take(caller)).toThrow(new AgentError("STREAMS_EXHAUSTED").message);
    expect(lines(await response.text()).map(({ type }) => type)).toEqual(["ready", "exited"]);
    await endOf(response);
    expect(source.closed).toBe(1);
    streams.take(caller).leave();
  });

  test("of a source that fails ends with exactly one error that shows no cause", async () => {
    const source = new ListSource([{ type: "ready" }, new Error("/host/path is broken")]);
    const frames = lines(await respond(source).text());
    expect(frames).toEqual([{ type: "ready" }, { type: "error", code: "INTERNAL", message: "internal error" }]);
    expect(logged.length).toBe(1);
    expect(source.closed).toBe(1);
  });

  test.each(["exited", "error"])("is over with %s: nothing follows, whatever happens then", async (type) => {
    const streams = new AttachedStreams(1);
    const source = new ListSource([{ type }, { type: "output" }, new Error("late")]);
    const response = respond(source, streams);
    const reader = response.body!.getReader();
    expect(lines(Buffer.from((await reader.read()).value!).toString())).toEqual([{ type }]);
    // Before the reader has asked again, when the source could still say something.
    streams.drain();
    expect((await reader.read()).done).toBe(true);
    expect([source.asked, source.closed]).toEqual([1, 1]);
  });

  test("breaks silence, and sends what came after it once", async () => {
    const source = new ListSource([], true);
    const reader = respond(source, undefined, 10).body!.getReader();
    const first = Buffer.from((await reader.read()).value!).toString();
    expect(lines(first)).toEqual([{ type: "keep_alive" }]);
    source.answer({ type: "late" });
    let rest = "";
    while (!rest.includes("late")) rest += Buffer.from((await reader.read()).value!).toString();
    expect(rest.match(/late/g)?.length).toBe(1);
    expect(source.asked).toBe(1);
    await reader.cancel();
    expect(source.closed).toBe(1);
  });

  test("asks for nothing while its reader takes nothing", async () => {
    const source = new ListSource(Array.from({ length: 100 }, () => ({ type: "output" })));
    const reader = respond(source, undefined, 5).body!.getReader();
    await reader.read();
    await Bun.sleep(30);
    expect(source.asked).toBeLessThanOrEqual(2);
    await reader.cancel();
  });

  test("that is still silent when the server ends says so", async () => {
    const streams = new AttachedStreams(3);
    const source = new ListSource([], true);
    const text = respond(source, streams).text();
    await Bun.sleep(1);
    streams.drain();
    expect(lines(await text)).toEqual([expect.objectContaining({ type: "error", code: "SHUTTING_DOWN" })]);
    expect(source.closed).toBe(1);
    expect(() => streams.take(caller)).toThrow();
  });
});

describe("over a socket", () => {
  const servers: { stop(force: boolean): unknown }[] = [];
  afterEach(() => servers.splice(0).forEach((server) => server.stop(true)));

  function serve(source: FrameSource, framing: Framing = framings.ndjson): { url: string; ended: Promise<void> } {
    const { promise, resolve } = Promise.withResolvers<void>();
    const server = Bun.serve({
      port: 0,
      hostname: "127.0.0.1",
      fetch: () => {
        const place = new AttachedStreams(1).take(caller);
        const response = streamResponse(source, { framing, place, log, keepAliveMs: 10_000 });
        void endOf(response)!.then(resolve);
        return response;
      },
    });
    servers.push(server);
    return { url: server.url.href, ended: promise };
  }

  test("a client that leaves closes the source", async () => {
    const source = new ListSource([{ type: "ready" }], true);
    const { url, ended } = serve(source);
    const abort = new AbortController();
    const response = await fetch(url, { signal: abort.signal });
    await response.body!.getReader().read();
    abort.abort();
    await ended;
    expect(source.closed).toBe(1);
  });

  // What sources that lend their content count on.
  test.each([0, 2])("the content of a frame is not looked at any more when the next is asked for", async (stallMs) => {
    const frames = 200;
    const [small, large] = [new Uint8Array(3000), new Uint8Array(300_000)];
    let asked = 0;
    const source: FrameSource = {
      next: () => {
        asked += 1;
        if (asked > frames) return Promise.resolve({ type: "exited" });
        const data = asked % 3 === 0 ? small : large;
        small.fill(0xff);
        large.fill(0xff);
        data.fill(asked % 200);
        return Promise.resolve({ type: "output", data });
      },
      close: () => {},
    };
    const { url, ended } = serve(source, framings.msgpack);
    let foreignBytes = 0;
    let bytes = 0;
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port: Number(new URL(url).port),
      socket: {
        binaryType: "uint8array",
        data: (it, chunk) => {
          bytes += chunk.length;
          for (const byte of chunk as unknown as Uint8Array) if (byte === 0xff) foreignBytes += 1;
          if (stallMs === 0) return;
          it.pause();
          setTimeout(() => it.resume(), stallMs);
        },
        open: (it) => void it.write("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
      },
    });
    await ended;
    socket.terminate();
    expect(bytes).toBeGreaterThan(10_000_000);
    expect(foreignBytes).toBe(0);
  });

  test("a reader that stalls holds a fast source up", async () => {
    const block = "x".repeat(64 * 1024);
    let sent = 0;
    const source: FrameSource = {
      next: () => ((sent += block.length), Promise.resolve({ type: "output", block })),
      close: () => {},
    };
    const { url, ended } = serve(source);
    const socket = await Bun.connect({
      hostname: "127.0.0.1",
      port: Number(new URL(url).port),
      socket: { data: () => {}, open: (it) => void (it.pause(), it.write("GET / HTTP/1.1\r\nHost: a\r\n\r\n")) },
    });
    let before = -1;
    for (let still = 0; still < 5; still = sent === before ? still + 1 : 0) {
      before = sent;
      await Bun.sleep(50);
    }
    expect(sent).toBeGreaterThan(0);
    expect(sent).toBeLessThan(32 * 1024 * 1024);
    socket.terminate();
    await ended;
  });
});
