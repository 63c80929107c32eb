// The beginning of a connection: preamble, HELLO, WELCOME. Also finds out that a guest only speaks version 1.
import type { Loan, OpenLink } from "../contracts/channel.ts";
import { AgentError } from "../errors/agent-error.ts";
import { GuestConnection, type Heartbeat, type Welcome } from "./connection.ts";
import type { DataPiece } from "./cut-data.ts";
import { guestFault, guestUnreachable, guestViolation } from "./faults.ts";
import { integer, text, texts } from "./fields.ts";
import { encodeFrame, FrameKind, FrameParser } from "./frame.ts";
import { MsgpackReader } from "./msgpack.ts";
import { GuestSocket } from "./socket.ts";
import { ProtocolViolation } from "./violation.ts";

const VERSION = 2;
const NONCE_BYTES = 16;
const OPEN_BRACE = 0x7b;
const FEATURES_MAX = 64;

export interface Endpoint {
  readonly open: OpenLink;
  /** Shows the guest agent that the host is asking. Never logged. */
  readonly token: string;
  /** Whether the link leads to a byte device of the guest, which knows no connections. */
  readonly device?: boolean;
}

/**
 * Connects and shakes hands within `timeoutMs`. Resolves with `null` when the peer answered as a guest agent of
 * version 1 does. Rejects with `GUEST_UNREACHABLE`, `PROTOCOL_MISMATCH` or `GUEST_ERROR` (token refused).
 */
export async function shakeHands(
  endpoint: Endpoint,
  timeoutMs: number,
  heartbeat: Heartbeat,
): Promise<GuestConnection | null> {
  const handshake = new Handshake(endpoint, heartbeat);
  const timer = setTimeout(() => handshake.fail(guestUnreachable(`no handshake within ${timeoutMs} ms`)), timeoutMs);
  try {
    void handshake.start();
    return await handshake.outcome;
  } finally {
    clearTimeout(timer);
  }
}

class Handshake {
  readonly #endpoint: Endpoint;
  readonly #heartbeat: Heartbeat;
  readonly #preamble: Uint8Array;
  readonly #parser = new FrameParser(
    (stream, kind, payload) => this.#frame(stream, kind, payload),
    (piece, loan) => this.#piece(piece, loan),
  );
  readonly #result = Promise.withResolvers<GuestConnection | null>();
  /** What of the peer's preamble is there. */
  #echo = new Uint8Array(0);
  #echoed = false;
  /** On a device: what comes is the answer to somebody who asked before us. */
  #stale = false;
  #settled = false;
  #socket: GuestSocket | null = null;
  #connection: GuestConnection | null = null;

  constructor(endpoint: Endpoint, heartbeat: Heartbeat) {
    this.#endpoint = endpoint;
    this.#heartbeat = heartbeat;
    const nonce = crypto.getRandomValues(Buffer.alloc(NONCE_BYTES)).toString("hex");
    this.#preamble = Buffer.from(`FLUXVM/${VERSION} ${nonce}\n`);
  }

  get outcome(): Promise<GuestConnection | null> {
    return this.#result.promise;
  }

  async start(): Promise<void> {
    const { open, device } = this.#endpoint;
    const events = {
      received: (bytes: Uint8Array, loan?: Loan) => this.#receive(bytes, loan),
      began: () => this.#began(),
      drained: () => this.#connection?.drained(),
      closed: (reason: string) => this.#closed(reason),
    };
    try {
      this.#socket = await GuestSocket.connect(open, events, device);
    } catch (error) {
      this.fail(guestUnreachable("the connection was refused", error));
      return;
    }
    if (this.#settled) this.#socket.destroy();
    else this.#socket.write(this.#preamble);
  }

  fail(error: AgentError): void {
    if (this.#settled) return;
    this.#settled = true;
    this.#socket?.destroy();
    this.#result.reject(error);
  }

  #closed(reason: string): void {
    if (this.#connection !== null) this.#connection.closed(reason);
    else this.fail(guestUnreachable(reason));
  }

  /** The guest agent answers, or it is another one than before. */
  #began(): void {
    if (this.#echoed) return this.#closed("the guest agent began anew");
    this.#echo = new Uint8Array(0);
    this.#stale = false;
  }

  #receive(bytes: Uint8Array, loan?: Loan): void {
    if (this.#stale) return;
    try {
      if (this.#echoed) this.#parser.push(bytes, loan);
      else this.#receiveEcho(bytes);
    } catch (error) {
      if (!(error instanceof ProtocolViolation)) throw error;
      const failure = guestViolation(error.message);
      if (this.#connection !== null) this.#connection.end(failure);
      else this.fail(failure);
    }
  }

  #receiveEcho(bytes: Uint8Array): void {
    const missing = this.#preamble.length - this.#echo.length;
    this.#echo = Buffer.concat([this.#echo, bytes.subarray(0, missing)]);
    if (this.#echo[0] === OPEN_BRACE && !this.#endpoint.device) {
      this.#settled = true;
      this.#socket?.destroy();
      this.#result.resolve(null);
      return;
    }
    if (!Buffer.from(this.#preamble.subarray(0, this.#echo.length)).equals(this.#echo)) {
      this.#stale = this.#endpoint.device === true;
      if (this.#stale) return;
      throw new ProtocolViolation("the preamble was not answered");
    }
    if (this.#echo.length < this.#preamble.length) return;
    this.#echoed = true;
    // Only now: a peer that does not answer the nonce is not told the token.
    this.#socket?.write(encodeFrame(0, FrameKind.hello, { versions: [VERSION], token: this.#endpoint.token }));
    this.#parser.push(bytes.subarray(missing));
  }

  #frame(stream: number, kind: FrameKind, payload: Uint8Array): void {
    if (this.#connection !== null) return this.#connection.receive(stream, kind, payload);
    if (this.#settled) return;
    const reader = new MsgpackReader();
    reader.reset(payload);
    const message = reader.wholeMap();
    if (stream !== 0) throw new ProtocolViolation("a stream before the welcome");
    if (kind === FrameKind.error) return this.fail(guestFault(message, null));
    if (kind !== FrameKind.welcome) throw new ProtocolViolation("another frame before the welcome");
    if (integer(message, "version") !== VERSION) return this.fail(new AgentError("PROTOCOL_MISMATCH"));
    this.#welcome({
      agent: text(message, "agent"),
      boot: text(message, "boot"),
      features: new Set(texts(message, "features").slice(0, FEATURES_MAX)),
    });
  }

  #piece(piece: DataPiece, loan: Loan | undefined): void {
    if (this.#connection !== null) return this.#connection.receivePiece(piece, loan);
    if (!this.#settled) throw new ProtocolViolation("another frame before the welcome");
  }

  #welcome(welcome: Welcome): void {
    if (this.#socket === null) return;
    this.#settled = true;
    this.#connection = new GuestConnection(this.#socket, welcome, this.#heartbeat);
    this.#result.resolve(this.#connection);
  }
}
