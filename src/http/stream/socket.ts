// One WebSocket: frames of a source go out as fast as the client reads, messages of the client are answered one after
// the other. A client that does not read holds up its source; one that sends more than its credit is closed.
import type { ServerWebSocket } from "bun";
import { limits } from "../../config/limits.ts";
import type { Frame, FrameSource } from "./frame.ts";
import type { SocketEncoding } from "./socket-encoding.ts";
import { frameStream, type StreamOptions } from "./response.ts";
import type { SocketHandler } from "./upgrade.ts";

/** Close codes of RFC 6455. */
const CLOSE = { normal: 1000, invalidData: 1007, policy: 1008 } as const;
/** What a message costs beside its bytes, so that empty ones are bounded too. */
const MESSAGE_COST_BYTES = 64;

/** The client sent what it may not. The text is for the client, and short. */
export class MessageError extends Error {
  override readonly name = "MessageError";
}

export interface FrameSocketOptions extends Omit<StreamOptions, "framing" | "status"> {
  readonly encoding: SocketEncoding;
  /**
   * Answers one message of the client; null says nothing. Throws `MessageError` for what no client may send. Called
   * again only after it has answered.
   */
  readonly answer: (message: string | Uint8Array) => Promise<Frame | null>;
}

/** Reads encoded frames, one a call. */
interface FrameReader {
  read(): Promise<{ readonly value?: Uint8Array; readonly done: boolean }>;
  cancel(): Promise<void>;
}

export class FrameSocket implements SocketHandler {
  readonly #frames: FrameReader;
  readonly #inbox: { readonly message: string | Uint8Array; readonly cost: number }[] = [];
  #inboxBytes = 0;
  #isAnswering = false;
  #socket: ServerWebSocket<unknown> | null = null;
  /** Set while the client has not read what was sent. */
  #drained: PromiseWithResolvers<void> | null = null;
  #isOver = false;

  constructor(
    source: FrameSource,
    private readonly options: FrameSocketOptions,
  ) {
    // The same stream as over HTTP, a frame a chunk, so that keep-alives, failures and the end of the server are alike.
    this.#frames = frameStream(source, { ...options, framing: options.encoding.framing }).body.getReader();
  }

  open(socket: ServerWebSocket<unknown>): void {
    this.#socket = socket;
    void this.#sendFrames();
  }

  message(_socket: ServerWebSocket<unknown>, message: string | Buffer): void {
    if (this.#isOver) return;
    const cost = MESSAGE_COST_BYTES + Buffer.byteLength(message);
    this.#inboxBytes += cost;
    if (this.#inboxBytes > limits.socketCreditBytes) {
      return this.#end(CLOSE.policy, "more was sent than was answered, beyond the credit");
    }
    this.#inbox.push({ message, cost });
    if (!this.#isAnswering) void this.#answerAll();
  }

  drain(): void {
    this.#drained?.resolve();
    this.#drained = null;
  }

  close(): void {
    this.#socket = null;
    this.#dispose();
  }

  async #sendFrames(): Promise<void> {
    for (;;) {
      const { value, done } = await this.#frames.read();
      if (done || value === undefined) break;
      if (!(await this.#send(value))) return;
    }
    await this.#writable();
    this.#end(CLOSE.normal, "");
  }

  async #answerAll(): Promise<void> {
    this.#isAnswering = true;
    for (let next = this.#inbox.shift(); next !== undefined; next = this.#inbox.shift()) {
      let reply: Frame | null;
      try {
        reply = await this.options.answer(next.message);
      } catch (error) {
        const text = error instanceof MessageError ? error.message : "internal error";
        this.#end(CLOSE.invalidData, text);
        break;
      }
      if (reply !== null && !(await this.#sendFrame(reply))) break;
      this.#inboxBytes -= next.cost;
    }
    this.#isAnswering = false;
  }

  async #sendFrame(frame: Frame): Promise<boolean> {
    const [bytes] = this.options.encoding.framing.encode(frame);
    return bytes !== undefined && (await this.#send(bytes));
  }

  /** Resolves with false when the socket is gone. */
  async #send(bytes: Uint8Array): Promise<boolean> {
    await this.#writable();
    const socket = this.#socket;
    if (this.#isOver || socket === null) return false;
    const sent = this.options.encoding.send(socket, bytes);
    if (sent < 0) this.#drained ??= Promise.withResolvers();
    if (sent !== 0) return true;
    // The message was dropped: a stream with a hole must not go on.
    socket.terminate();
    this.close();
    return false;
  }

  async #writable(): Promise<void> {
    while (this.#drained !== null) await this.#drained.promise;
  }

  #end(code: number, reason: string): void {
    if (!this.#isOver) this.#socket?.close(code, reason);
    this.#dispose();
  }

  /** Frees the source and the place of the stream. */
  #dispose(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#inbox.length = 0;
    this.drain();
    // It may be over already.
    this.#frames.cancel().catch(() => {});
  }
}
