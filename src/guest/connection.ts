// One connection of protocol version 2 after its handshake: gives each operation a stream, hands frames to it, and
// notices a peer that is gone or silent. When the connection ends, every operation on it fails; none is ever resolved.
import { limits } from "../config/limits.ts";
import type { Loan } from "../contracts/channel.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { DataPiece } from "./cut-data.ts";
import { guestFault, guestUnreachable, guestViolation } from "./faults.ts";
import { integer } from "./fields.ts";
import { encodeFrame, FrameKind, wide, type Message } from "./frame.ts";
import { MsgpackReader, type Fields } from "./msgpack.ts";
import type { GuestSocket } from "./socket.ts";
import { GuestStream, type StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

/** What the guest agent said about itself. */
export interface Welcome {
  readonly agent: string;
  /** Differs whenever the guest agent process is a different one. */
  readonly boot: string;
  readonly features: ReadonlySet<string>;
}

export interface Heartbeat {
  /** Silence after which the guest is asked for a sign of life. */
  readonly idleMs: number;
  /** How long it may take to give one. */
  readonly pongTimeoutMs: number;
}

/** What is known of a piece beside its message. */
interface PieceFacts extends Pick<DataPiece, "announcedBytes"> {
  readonly loan: Loan | undefined;
}

export class GuestConnection {
  readonly welcome: Welcome;
  readonly #socket: GuestSocket;
  readonly #reader = new MsgpackReader();
  readonly #streams = new Map<number, GuestStream>();
  readonly #heartbeat: Heartbeat;
  #heartbeatTimer: Timer;
  #lastHeardMs = performance.now();
  #awaitingPong = false;
  #lastStreamId = 0;
  #wideStreams = 0;
  #failure: AgentError | null = null;
  #onEnd: () => void = () => undefined;

  /** `socket` has done the handshake; its owner hands on the frames and the close. */
  constructor(socket: GuestSocket, welcome: Welcome, heartbeat: Heartbeat) {
    this.#socket = socket;
    this.welcome = welcome;
    this.#heartbeat = heartbeat;
    this.#heartbeatTimer = this.#schedule(heartbeat.idleMs);
  }

  /** False once the connection has ended. */
  get alive(): boolean {
    return this.#failure === null;
  }

  /** Calls `notify` when the connection has ended, at once if that is so already. */
  whenEnded(notify: () => void): void {
    if (this.#failure === null) this.#onEnd = notify;
    else notify();
  }

  /**
   * Opens a stream for an operation. `timeoutMs` 0 = no limit; when it passes, the stream is cancelled and fails with
   * `GUEST_UNREACHABLE`. A connection that has ended fails the handler in this call. Throws `COMMAND_TOO_LARGE` when the
   * arguments do not fit a frame and `SANDBOX_BUSY` when too many streams are open.
   */
  open(op: string, args: Message, handler: StreamHandler, timeoutMs: number): GuestStream {
    if (this.#streams.size >= limits.streamsMax) {
      throw new AgentError("SANDBOX_BUSY", "too many operations on this sandbox at once");
    }
    const id = this.#lastStreamId + 1;
    const frame = encodeOpen(id, op, args);
    this.#lastStreamId = id;
    const deadline = timeoutMs > 0 ? setTimeout(() => this.#expire(id, timeoutMs), timeoutMs) : null;
    const stream = new GuestStream(id, op, handler, this.#socket, deadline);
    if (this.#failure !== null) {
      stream.over();
      handler.failed(this.#failure);
      return stream;
    }
    this.#streams.set(id, stream);
    this.#socket.write(frame);
    return stream;
  }

  /** Lets the guest run further ahead on the stream, unless too many have that already. */
  widen(stream: GuestStream): void {
    if (!this.#streams.has(stream.id) || this.#wideStreams >= limits.wideStreamsPerConnectionMax) return;
    this.#wideStreams += 1;
    stream.widen();
  }

  /** Gives a stream up on the host's side: the guest is told, and later frames of it are ignored. */
  abandon(stream: GuestStream, error: AgentError): void {
    if (!this.#finish(stream)) return;
    stream.cancel();
    stream.handler.failed(error);
  }

  /** Ends the connection; every open stream fails with the error. */
  end(error: AgentError): void {
    if (this.#failure !== null) return;
    this.#failure = error;
    clearTimeout(this.#heartbeatTimer);
    this.#socket.destroy();
    for (const stream of this.#streams.values()) {
      stream.over();
      stream.handler.failed(error);
    }
    this.#streams.clear();
    this.#onEnd();
  }

  /** The socket takes content again. Those that send go on by turns: whoever had one comes last the next time. */
  drained(): void {
    for (const [id, stream] of [...this.#streams]) {
      if (this.#socket.isCongested) return;
      if (stream.handler.credit === undefined || !this.#streams.delete(id)) continue;
      this.#streams.set(id, stream);
      stream.drained();
    }
  }

  closed(reason: string): void {
    this.end(guestUnreachable(reason));
  }

  /** A frame of the peer; anything that the protocol forbids ends the connection. */
  receive(streamId: number, kind: FrameKind, payload: Uint8Array): void {
    this.#take(() => {
      this.#reader.reset(payload);
      const message = this.#reader.wholeMap();
      if (streamId === 0) this.#receiveForConnection(kind, message);
      else this.#receiveForStream(streamId, kind, message);
    });
  }

  /** A piece of a DATA frame that comes in pieces; content on loan is the stream's to give back. */
  receivePiece({ stream, message, announcedBytes }: DataPiece, loan: Loan | undefined): void {
    this.#take(() => {
      if (stream === 0) this.#receiveForConnection(FrameKind.data, message);
      else this.#receiveForStream(stream, FrameKind.data, message, { announcedBytes, loan });
    });
  }

  #take(receive: () => void): void {
    if (this.#failure !== null) return;
    this.#lastHeardMs = performance.now();
    try {
      receive();
    } catch (error) {
      if (!(error instanceof ProtocolViolation)) throw error;
      this.end(guestViolation(error.message));
    }
  }

  #receiveForConnection(kind: FrameKind, message: Fields): void {
    switch (kind) {
      case FrameKind.ping:
        this.#socket.write(encodeFrame(0, FrameKind.pong, { t: wide(integer(message, "t")) }));
        return;
      case FrameKind.pong:
        this.#awaitingPong = false;
        return;
      case FrameKind.error:
        this.end(guestFault(message, null));
        return;
      default:
        throw new ProtocolViolation(`frame kind ${kind} on the connection`);
    }
  }

  #receiveForStream(id: number, kind: FrameKind, message: Fields, piece?: PieceFacts): void {
    const stream = this.#streams.get(id);
    if (stream === undefined) {
      // Over, and the guest did not know yet.
      if (id <= this.#lastStreamId) return;
      throw new ProtocolViolation("a frame for a stream that was never opened");
    }
    try {
      if (kind === FrameKind.data) this.#dispatchData(stream, message, piece);
      else this.#dispatch(stream, kind, message);
    } catch (error) {
      if (error instanceof ProtocolViolation) throw error;
      this.abandon(stream, asAgentError(error));
    }
  }

  #dispatch(stream: GuestStream, kind: FrameKind, message: Fields): void {
    switch (kind) {
      case FrameKind.event:
        stream.handler.event?.(message);
        return;
      case FrameKind.credit:
        stream.credited(integer(message, "n"));
        return;
      case FrameKind.end:
        // The handler checks the message first: what it refuses must fail the stream, not vanish with it.
        stream.handler.ended(message);
        this.#finish(stream);
        return;
      case FrameKind.error: {
        const fault = guestFault(message, stream.op);
        this.#finish(stream);
        stream.handler.failed(fault);
        return;
      }
      default:
        throw new ProtocolViolation(`frame kind ${kind} on a stream`);
    }
  }

  #dispatchData(stream: GuestStream, message: Fields, piece?: PieceFacts): void {
    const content = message.d;
    if (!(content instanceof Uint8Array) || content.length > limits.frameDataMaxBytes) {
      throw new ProtocolViolation("DATA without content or beyond the limit");
    }
    // All of a frame has to be granted before it begins.
    stream.received(piece?.announcedBytes ?? content.length);
    if (stream.handler.data === undefined) throw new ProtocolViolation("DATA for an operation that has none");
    stream.handler.data(integer(message, "c", 2), content, message, piece?.loan);
  }

  /** True when the stream was open until now. */
  #finish(stream: GuestStream): boolean {
    stream.over();
    if (!this.#streams.delete(stream.id)) return false;
    if (stream.isWide) this.#wideStreams -= 1;
    return true;
  }

  #expire(id: number, timeoutMs: number): void {
    const stream = this.#streams.get(id);
    if (stream !== undefined) this.abandon(stream, guestUnreachable(`no answer within ${timeoutMs} ms`));
  }

  #schedule(afterMs: number): Timer {
    return setTimeout(() => this.#beat(), afterMs).unref();
  }

  #beat(): void {
    const { idleMs, pongTimeoutMs } = this.#heartbeat;
    const silentMs = performance.now() - this.#lastHeardMs;
    if (silentMs < idleMs) {
      this.#awaitingPong = false;
      this.#heartbeatTimer = this.#schedule(idleMs - silentMs);
    } else if (this.#awaitingPong) {
      this.end(guestUnreachable(`no sign of life for ${Math.round(silentMs)} ms`));
    } else {
      this.#awaitingPong = true;
      this.#socket.write(encodeFrame(0, FrameKind.ping, { t: this.#lastStreamId }));
      this.#heartbeatTimer = this.#schedule(pongTimeoutMs);
    }
  }
}

function encodeOpen(id: number, op: string, args: Message): Uint8Array {
  try {
    return encodeFrame(id, FrameKind.open, { op, ...args });
  } catch (error) {
    if (error instanceof RangeError) throw new AgentError("COMMAND_TOO_LARGE", "the arguments do not fit one frame");
    throw error;
  }
}
