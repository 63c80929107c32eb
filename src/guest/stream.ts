// One stream of a connection as the host sees it: its handler, its credit in both directions, and its deadline.
import { limits } from "../config/limits.ts";
import type { Loan } from "../contracts/channel.ts";
import type { AgentError } from "../errors/agent-error.ts";
import { encodeData, encodeFrame, FrameKind } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

/** What an operation does with the answers. What it throws fails the stream. Exactly one of `ended`, `failed` comes. */
export interface StreamHandler {
  event?(message: Fields): void;
  /**
   * `content` is a view of memory that nobody writes again, unless it is on loan and was given back; `message` is all of
   * the frame. The handler grants the credit back.
   */
  data?(channel: number, content: Uint8Array, message: Fields, loan?: Loan): void;
  /** The host may be able to send more. */
  credit?(): void;
  ended(message: Fields): void;
  failed(error: AgentError): void;
}

/** Where frames go. */
export interface Outlet {
  write(frame: Uint8Array): void;
  /** Content has to wait. */
  readonly isCongested: boolean;
}

export class GuestStream {
  readonly id: number;
  readonly op: string;
  readonly handler: StreamHandler;
  readonly #outlet: Outlet;
  readonly #deadline: Timer | null;
  /** Bytes of DATA that the guest may still send. */
  #receivable: number = limits.streamCreditBytes;
  /** Bytes that were consumed but not granted back yet. */
  #consumed = 0;
  /** What may be under way in all. */
  #window: number = limits.streamCreditBytes;
  #sendable: number = limits.streamCreditBytes;

  constructor(id: number, op: string, handler: StreamHandler, outlet: Outlet, deadline: Timer | null) {
    this.id = id;
    this.op = op;
    this.handler = handler;
    this.#outlet = outlet;
    this.#deadline = deadline;
  }

  /** Bytes of DATA that may be sent now; the handler is told when there are more. */
  get sendable(): number {
    return this.#outlet.isCongested ? 0 : this.#sendable;
  }

  /** Sends DATA; at most `sendable` bytes and at most one frame's worth. */
  send(channel: number, content: Uint8Array, eof: boolean): void {
    this.#sendable -= content.length;
    this.#outlet.write(encodeData(this.id, channel, content, eof));
  }

  /**
   * Lets the guest send as many bytes more. Small amounts are gathered, so that not every frame costs another; but a guest
   * that runs far ahead hears of it well before it has to wait.
   */
  grant(bytes: number): void {
    this.#consumed += bytes;
    if (this.#consumed < Math.min(this.#window / 2, limits.streamCreditBytes)) return;
    const n = this.#consumed;
    this.#consumed = 0;
    this.#receivable += n;
    this.#outlet.write(encodeFrame(this.id, FrameKind.credit, { n }));
  }

  get isWide(): boolean {
    return this.#window > limits.streamCreditBytes;
  }

  /** Lets the guest run further ahead from now on. */
  widen(): void {
    const n = limits.wideStreamCreditBytes - this.#window;
    this.#window += n;
    this.#receivable += n;
    this.#outlet.write(encodeFrame(this.id, FrameKind.credit, { n }));
  }

  /** Tells the guest that nobody waits for the answer any more. */
  cancel(): void {
    this.#outlet.write(encodeFrame(this.id, FrameKind.cancel, {}));
  }

  /** Accounts for DATA that arrived. Throws `ProtocolViolation` when it is more than was granted. */
  received(bytes: number): void {
    this.#receivable -= bytes;
    if (this.#receivable < 0) throw new ProtocolViolation("more data than was granted");
  }

  /** Accounts for credit that arrived. */
  credited(bytes: number): void {
    this.#sendable += bytes;
    if (this.#sendable > Number.MAX_SAFE_INTEGER) throw new ProtocolViolation("more credit than a stream can hold");
    this.handler.credit?.();
  }

  /** The outlet is no longer congested. */
  drained(): void {
    if (this.#sendable > 0) this.handler.credit?.();
  }

  /** Stops the deadline. */
  over(): void {
    if (this.#deadline !== null) clearTimeout(this.#deadline);
  }
}
