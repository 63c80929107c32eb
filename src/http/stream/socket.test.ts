// A WebSocket against what Bun says of a send: taken, not yet read, or dropped.
import { describe, expect, test } from "bun:test";
import { silentLog } from "../../telemetry/silent-log.ts";
import { AttachedStreams } from "./attached.ts";
import type { Frame, FrameSource } from "./frame.ts";
import { FrameSocket } from "./socket.ts";
import { chosenEncoding } from "./socket-encoding.ts";

const caller = { actor: "a", role: "admin", tenant: null, token: "a" } as const;

/** Frames without end. */
class Flood implements FrameSource {
  asked = 0;
  closed = 0;

  next(): Promise<Frame> {
    return Promise.resolve({ type: "output", offset: this.asked++ });
  }

  close(): void {
    this.closed += 1;
  }
}

/** What Bun's socket does, by the answer of each send. */
class StubSocket {
  readonly sent: string[] = [];
  terminated = 0;
  readonly codes: number[] = [];

  constructor(private readonly answers: number[]) {}

  sendText(text: string): number {
    this.sent.push(text);
    return this.answers.shift() ?? -1;
  }

  terminate(): void {
    this.terminated += 1;
  }

  close(code: number): void {
    this.codes.push(code);
  }
}

function open(answers: number[]) {
  const source = new Flood();
  const streams = new AttachedStreams(1);
  const socket = new StubSocket(answers);
  const frames = new FrameSocket(source, {
    encoding: chosenEncoding(null),
    place: streams.take(caller),
    log: silentLog,
    answer: async () => null,
  });
  frames.open(socket as never);
  return { source, socket, frames, streams };
}

describe("a send", () => {
  test("that is not read yet is the last until the socket has drained", async () => {
    const { source, socket, frames } = open([10, 10, -1, 10, -1]);
    await Bun.sleep(10);
    expect(socket.sent).toHaveLength(3);
    expect(source.asked).toBeLessThanOrEqual(5);
    frames.drain();
    await Bun.sleep(10);
    expect(socket.sent).toHaveLength(5);
    expect([socket.terminated, source.closed]).toEqual([0, 0]);
    frames.close();
    await Bun.sleep(1);
    expect(source.closed).toBe(1);
  });

  test("that was dropped ends the socket at once: a stream with a hole never goes on", async () => {
    const { source, socket, streams } = open([10, 0]);
    await Bun.sleep(10);
    expect(socket.sent).toHaveLength(2);
    expect([socket.terminated, source.closed]).toEqual([1, 1]);
    // No close code, which would say that it ended in order.
    expect(socket.codes).toEqual([]);
    streams.take(caller).leave();
  });
});
