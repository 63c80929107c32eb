// A TCP connection to a port inside a sandbox, on a stream of its own. Credit is the back-pressure in both directions, and
// each direction ends by itself.
import { limits } from "../config/limits.ts";
import type { PortConnection } from "../contracts/ports.ts";
import type { AgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { Channel } from "./frame.ts";
import type { GuestStream, StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

const CHUNK_BYTES = 256 * 1024;

/** Connects; rejects with `PORT_REFUSED` and the like, or `GUEST_UNREACHABLE` when the guest says nothing. */
export function connectPort(connection: GuestConnection, port: number): Promise<PortConnection> {
  return new Promise((resolve, reject) => {
    let isConnected = false;
    const timer = setTimeout(() => {
      const silence = guestUnreachable(`no answer within ${limits.guestPortTimeoutMs} ms`);
      connection.abandon(stream, silence);
    }, limits.guestPortTimeoutMs);
    const handler: StreamHandler = {
      event: (message) => {
        if (message.event !== "connected") return;
        isConnected = true;
        clearTimeout(timer);
        resolve(relayed);
      },
      data: (channel, bytes, message) => {
        if (!isConnected) throw new ProtocolViolation("bytes before the connection was made");
        if (channel !== Channel.output) throw new ProtocolViolation("bytes on another channel than the output");
        relayed.arrived(bytes, message.eof === true);
      },
      credit: () => relayed.pump(),
      ended: () => relayed.ended(),
      failed: (error) => {
        clearTimeout(timer);
        relayed.failed(error);
        reject(error);
      },
    };
    const relayed = new RelayedConnection((error) => connection.abandon(stream, error));
    const stream = connection.open("port-connect", { port }, handler, 0);
    relayed.attach(stream);
  });
}

/** Bytes that wait to be sent, or the end of this direction. */
interface Outgoing {
  readonly data: Uint8Array | null;
  readonly sent: () => void;
  readonly failed: (error: AgentError) => void;
}

class RelayedConnection implements PortConnection {
  #stream: GuestStream | null = null;
  readonly #arrived: Uint8Array[] = [];
  #isComplete = false;
  #waiting: (() => void) | null = null;
  readonly #outgoing: Outgoing[] = [];
  /** Bytes of the first of `#outgoing` that were sent. */
  #sentBytes = 0;
  #hasEnded = false;
  #failure: AgentError | null = null;

  constructor(private readonly abandon: (error: AgentError) => void) {}

  async read(): Promise<Uint8Array | null> {
    for (;;) {
      const bytes = this.#arrived.shift();
      if (bytes !== undefined) {
        if (!this.#isComplete) this.#stream?.grant(bytes.length);
        return bytes;
      }
      if (this.#isComplete) return null;
      if (this.#failure !== null) throw this.#failure;
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    }
  }

  write(data: Uint8Array): Promise<void> {
    return data.length === 0 ? Promise.resolve() : this.#send(data);
  }

  end(): Promise<void> {
    return this.#hasEnded ? Promise.resolve() : this.#send(null);
  }

  close(): void {
    this.#arrived.length = 0;
    // What was written may still be on its way to the server, which a cancel would cut.
    const isOver = this.#isComplete && this.#hasEnded && this.#outgoing.length === 0;
    if (!isOver) this.abandon(guestUnreachable("the connection was closed"));
  }

  attach(stream: GuestStream): void {
    this.#stream = stream;
  }

  arrived(bytes: Uint8Array, isLast: boolean): void {
    if (this.#isComplete) throw new ProtocolViolation("bytes after the last");
    if (bytes.length > 0) this.#arrived.push(bytes);
    this.#isComplete = isLast;
    this.#wake();
  }

  ended(): void {
    if (!this.#isComplete || !this.#hasEnded || this.#outgoing.length > 0) {
      throw new ProtocolViolation("an end before both directions had ended");
    }
  }

  failed(error: AgentError): void {
    this.#failure = error;
    for (const { failed } of this.#outgoing.splice(0)) failed(error);
    this.#wake();
  }

  /** Sends what waits, as far as the guest takes it. */
  pump(): void {
    const stream = this.#stream;
    for (let first = this.#outgoing[0]; first !== undefined && stream !== null; first = this.#outgoing[0]) {
      if (first.data === null) {
        stream.send(Channel.input, new Uint8Array(0), true);
      } else {
        const room = Math.min(CHUNK_BYTES, stream.sendable, first.data.length - this.#sentBytes);
        if (room === 0) return;
        stream.send(Channel.input, first.data.subarray(this.#sentBytes, this.#sentBytes + room), false);
        this.#sentBytes += room;
        if (this.#sentBytes < first.data.length) continue;
      }
      this.#sentBytes = 0;
      this.#outgoing.shift();
      first.sent();
    }
  }

  #send(data: Uint8Array | null): Promise<void> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    if (this.#hasEnded) return Promise.reject(new TypeError("nothing is written after the end"));
    this.#hasEnded = data === null;
    return new Promise((sent, failed) => {
      this.#outgoing.push({ data, sent, failed });
      this.pump();
    });
  }

  #wake(): void {
    this.#waiting?.();
    this.#waiting = null;
  }
}
