// An operation that takes bytes from a source on the host. The source is asked for more only when the guest can take more.
import { limits } from "../config/limits.ts";
import type { ByteSource } from "../contracts/files.ts";
import { asAgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { Channel, type Message } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import type { GuestStream, StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

const CHUNK_BYTES = 256 * 1024;

/** Sends all of `content`, then resolves to the guest's answer. When the source fails, the guest drops what it has. */
export function upload(connection: GuestConnection, op: string, args: Message, content: ByteSource): Promise<Fields> {
  return new Promise((resolve, reject) => {
    const sender = new Sender(content);
    const handler: StreamHandler = {
      credit: () => sender.wake(),
      ended: (message) => {
        if (!sender.isComplete) throw new ProtocolViolation("an end before everything was sent");
        sender.stop();
        resolve(message);
      },
      failed: (error) => {
        sender.stop();
        reject(error);
      },
    };
    const stream = connection.open(op, args, handler, 0);
    sender.run(stream, (error) => connection.abandon(stream, error));
  });
}

class Sender {
  isComplete = false;
  #isOver = false;
  #wake: (() => void) | null = null;
  #timer: Timer | undefined;

  constructor(private readonly content: ByteSource) {}

  run(stream: GuestStream, abandon: (error: ReturnType<typeof asAgentError>) => void): void {
    this.#send(stream, abandon).catch((error: unknown) => abandon(asAgentError(error)));
  }

  wake(): void {
    this.#wake?.();
    this.#wake = null;
  }

  stop(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    clearTimeout(this.#timer);
    this.content.close();
    this.wake();
  }

  async #send(stream: GuestStream, abandon: (error: ReturnType<typeof asAgentError>) => void): Promise<void> {
    for (;;) {
      const bytes = this.#isOver ? null : await this.content.read();
      if (this.#isOver) return;
      if (bytes === null) break;
      for (let sent = 0; sent < bytes.length;) {
        const room = Math.min(CHUNK_BYTES, stream.sendable, bytes.length - sent);
        if (room > 0) stream.send(Channel.input, bytes.subarray(sent, sent + room), false);
        else await this.#room(abandon);
        if (this.#isOver) return;
        sent += room;
      }
    }
    this.isComplete = true;
    stream.send(Channel.input, new Uint8Array(0), true);
    this.#expectNews(abandon);
  }

  async #room(abandon: (error: ReturnType<typeof asAgentError>) => void): Promise<void> {
    this.#expectNews(abandon);
    await new Promise<void>((resolve) => {
      this.#wake = resolve;
    });
    clearTimeout(this.#timer);
  }

  #expectNews(abandon: (error: ReturnType<typeof asAgentError>) => void): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      abandon(guestUnreachable(`no answer within ${limits.guestFileTimeoutMs} ms`));
    }, limits.guestFileTimeoutMs);
  }
}
