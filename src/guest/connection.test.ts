import { afterEach, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { type AgentError, asAgentError } from "../errors/agent-error.ts";
import { FrameKind } from "./frame.ts";
import { shakeHands } from "./handshake.ts";
import { unixLink } from "./link.ts";
import type { GuestStream, StreamHandler } from "./stream.ts";
import { FakePeer, type PeerConnection, type ReceivedFrame } from "./testing/peer.ts";

const HEARTBEAT = { idleMs: 60_000, pongTimeoutMs: 1000 };
let peer: FakePeer | null = null;

afterEach(() => peer?.stop());

async function connect(script: (connection: PeerConnection) => Promise<void>) {
  peer = new FakePeer(script);
  const connection = await shakeHands({ open: unixLink(peer.path), token: "t" }, 1000, HEARTBEAT);
  if (connection === null) throw new Error("version 1");
  return connection;
}

function outcome(start: (handler: StreamHandler) => void): Promise<AgentError | "ended"> {
  return new Promise((resolve) => start({ ended: () => resolve("ended"), failed: resolve }));
}

test("an operation that takes too long is cancelled and fails; its late answer is ignored", async () => {
  const cancelled = Promise.withResolvers<ReceivedFrame>();
  const connection = await connect(async (c) => {
    await c.welcome();
    await c.next();
    cancelled.resolve(await c.next());
    c.send(1, FrameKind.end, {});
    c.send((await c.next()).stream, FrameKind.end, {});
  });
  const error = await outcome((handler) => connection.open("slow", {}, handler, 20));
  expect(error).toMatchObject({ code: "GUEST_UNREACHABLE" });
  expect(await cancelled.promise).toMatchObject({ stream: 1, kind: FrameKind.cancel });
  expect(await outcome((handler) => connection.open("ping", {}, handler, 1000))).toBe("ended");
  connection.closed("test over");
});

test("few streams of a connection may run further ahead, and those that are over make room for others", async () => {
  const credits: number[] = [];
  const connection = await connect(async (c) => {
    await c.welcome();
    for (;;) {
      const { stream, kind, message } = await c.next();
      if (kind === FrameKind.credit) credits.push(stream);
      else if (message.op === "ping") c.send(stream, FrameKind.end, {});
    }
  });
  const ignored = { ended: () => undefined, failed: () => undefined };
  const open = () => {
    const stream = connection.open("lasting", {}, ignored, 0);
    connection.widen(stream);
    return stream;
  };
  const [first] = Array.from({ length: limits.wideStreamsPerConnectionMax + 1 }, open);
  connection.abandon(first as GuestStream, asAgentError(new Error("over")));
  const last = open();
  expect(last.isWide).toBe(true);
  expect(await outcome((handler) => connection.open("ping", {}, handler, 1000))).toBe("ended");
  const ids = Array.from({ length: limits.wideStreamsPerConnectionMax }, (_, n) => (first as GuestStream).id + n);
  expect(credits).toEqual([...ids, last.id]);
  connection.closed("test over");
});

test("a guest that runs far ahead is granted more well before it has to wait, a near one not for every piece", async () => {
  const credits: number[] = [];
  const connection = await connect(async (c) => {
    await c.welcome();
    for (;;) {
      const { kind, message, stream } = await c.next();
      if (kind === FrameKind.credit) credits.push(message.n as number);
      else if (message.op === "ping") c.send(stream, FrameKind.end, {});
    }
  });
  const ignored = { ended: () => undefined, failed: () => undefined };
  const granted = async (stream: GuestStream, bytes: number) => {
    const piece = 64 * 1024;
    for (let sum = 0; sum < bytes; sum += piece) stream.grant(piece);
    expect(await outcome((handler) => connection.open("ping", {}, handler, 1000))).toBe("ended");
    return credits.splice(0);
  };
  const near = connection.open("lasting", {}, ignored, 0);
  const half = limits.streamCreditBytes / 2;
  expect(await granted(near, limits.streamCreditBytes)).toEqual([half, half]);
  connection.widen(near);
  const rest = limits.wideStreamCreditBytes - limits.streamCreditBytes;
  expect(await granted(near, 2 * limits.streamCreditBytes)).toEqual([
    rest,
    limits.streamCreditBytes,
    limits.streamCreditBytes,
  ]);
  connection.closed("test over");
});

test("what a handler throws fails its own stream only", async () => {
  const connection = await connect(async (c) => {
    await c.welcome();
    const first = await c.next();
    const second = await c.next();
    c.send(first.stream, FrameKind.event, { event: "x" });
    c.send(second.stream, FrameKind.end, {});
  });
  const broken = outcome(({ ended, failed }) => {
    const event = (): void => {
      throw new Error("bug in the handler");
    };
    connection.open("one", {}, { event, ended, failed }, 0);
  });
  const fine = outcome((handler) => connection.open("two", {}, handler, 0));
  expect(await broken).toMatchObject({ code: "INTERNAL" });
  expect(await fine).toBe("ended");
  expect(connection.alive).toBe(true);
  connection.closed("test over");
});

test("the deadline of an operation that was answered never fires", async () => {
  const connection = await connect(async (c) => {
    await c.welcome();
    c.send((await c.next()).stream, FrameKind.end, {});
    expect((await c.next()).message.op).toBe("second");
    c.send(2, FrameKind.end, {});
  });
  expect(await outcome((handler) => connection.open("first", {}, handler, 20))).toBe("ended");
  await Bun.sleep(40);
  expect(await outcome((handler) => connection.open("second", {}, handler, 1000))).toBe("ended");
  connection.closed("test over");
  expect(await outcome((handler) => connection.open("third", {}, handler, 1000))).toMatchObject({
    code: "GUEST_UNREACHABLE",
  });
});
