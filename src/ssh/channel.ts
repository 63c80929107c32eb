// One channel of a connection: bytes that come in under a window, bytes that go out under the client's, and an end for each
// direction. Nothing is kept beyond the windows; who reads slowly is sent little, and who writes waits.
import { limits } from "../config/limits.ts";
import { ByteQueue } from "./byte-queue.ts";
import type { Transport } from "./transport.ts";

const EXTENDED_STDERR = 1;
const WINDOW_LIMIT = 0xffff_ffff;

/** The client has closed the channel, or the connection is gone. */
export class ChannelClosed extends Error {
  override readonly name = "ChannelClosed";

  constructor() {
    super("the channel is closed");
  }
}

/** What the channels of a connection may have in their windows together. */
export class WindowBudget {
  #granted = 0;

  /** Whether `bytes` more fit; they are taken then. */
  take(bytes: number): boolean {
    if (this.#granted + bytes > limits.sshWindowsPerConnectionBytes) return false;
    this.#granted += bytes;
    return true;
  }

  give(bytes: number): void {
    this.#granted -= bytes;
  }
}

export interface ChannelOptions {
  readonly id: number;
  /** The client's number for it, window and longest packet. */
  readonly remote: { readonly id: number; readonly window: number; readonly packetMax: number };
  readonly transport: Transport;
  readonly budget: WindowBudget;
  /** Both sides have closed it. Called once. */
  readonly gone: () => void;
}

export class Channel {
  readonly id: number;
  readonly #remoteId: number;
  readonly #packetMax: number;
  readonly #transport: Transport;
  readonly #budget: WindowBudget;
  readonly #gone: () => void;
  readonly #arrived = new ByteQueue();
  readonly #closing = new AbortController();
  /** What the client may send at a time, how much of it is left, and what was taken since it was told. */
  #window: number = limits.sshWindowMinBytes;
  #windowLeft: number = limits.sshWindowMinBytes;
  #taken = 0;
  #sendWindow: number;
  #wakeReader: (() => void) | null = null;
  #wakeWriter: (() => void) | null = null;
  #turn: Promise<unknown> = Promise.resolve();
  #hasEnded = false;
  #sentEnd = false;
  #sentClose = false;
  #isGone = false;

  constructor({ id, remote, transport, budget, gone }: ChannelOptions) {
    this.id = id;
    this.#remoteId = remote.id;
    this.#packetMax = Math.min(remote.packetMax, limits.sshPacketMaxBytes);
    this.#sendWindow = remote.window;
    this.#transport = transport;
    this.#budget = budget;
    this.#gone = gone;
    budget.take(this.#window);
  }

  /** Aborts when the client has closed the channel or is gone. */
  get closed(): AbortSignal {
    return this.#closing.signal;
  }

  /** Tells the client that the channel is there. */
  confirm(): void {
    const { sshWindowMinBytes, sshPacketMaxBytes } = limits;
    this.#transport.send((protocol) =>
      protocol.channelOpenConfirm(this.#remoteId, this.id, sshWindowMinBytes, sshPacketMaxBytes),
    );
  }

  /** The next bytes, `max` at most; null after the client's end or close. One call at a time. */
  async read(max: number): Promise<Uint8Array | null> {
    for (;;) {
      const bytes = this.#arrived.take(max);
      if (bytes.length > 0) {
        this.#taken += bytes.length;
        this.#grant();
        return bytes;
      }
      if (this.#hasEnded || this.closed.aborted) return null;
      await new Promise<void>((resolve) => {
        this.#wakeReader = resolve;
      });
    }
  }

  /** Resolves when all of it is on its way. Writers take turns. Rejects with `ChannelClosed`. */
  async write(data: Uint8Array, stream: "stdout" | "stderr" = "stdout"): Promise<void> {
    const written = this.#turn.then(() => this.#write(data, stream));
    this.#turn = written.catch(() => undefined);
    await written;
  }

  /** No more is written. */
  end(): void {
    if (this.#sentEnd || this.#sentClose) return;
    this.#sentEnd = true;
    this.#transport.send((protocol) => protocol.channelEOF(this.#remoteId));
  }

  /** Tells the end of the command before the channel's. */
  exit(status: number): void {
    this.#transport.send((protocol) => protocol.exitStatus(this.#remoteId, status));
  }

  exitBySignal(name: string): void {
    this.#transport.send((protocol) => protocol.exitSignal(this.#remoteId, name, false, ""));
  }

  /** Answers a request on the channel. */
  answer(isDone: boolean): void {
    this.#transport.send((protocol) =>
      isDone ? protocol.channelSuccess(this.#remoteId) : protocol.channelFailure(this.#remoteId),
    );
  }

  close(): void {
    if (this.#sentClose) return;
    this.end();
    this.#sentClose = true;
    this.#transport.send((protocol) => protocol.channelClose(this.#remoteId));
    if (this.closed.aborted) this.#over();
  }

  /** The client has sent bytes. False when it had no leave to. */
  received(data: Uint8Array): boolean {
    if (data.length > this.#windowLeft || this.#hasEnded) return false;
    this.#windowLeft -= data.length;
    if (this.#sentClose) this.#taken += data.length;
    else this.#arrived.push(data);
    this.#wake();
    return true;
  }

  /** The client takes `bytes` more. */
  granted(bytes: number): void {
    this.#sendWindow = Math.min(this.#sendWindow + bytes, WINDOW_LIMIT);
    this.#wake();
  }

  receivedEnd(): void {
    this.#hasEnded = true;
    this.#wake();
  }

  /** The client has closed the channel; it is answered at once, and what runs on it hears of it by `closed`. */
  receivedClose(): void {
    this.#closing.abort();
    this.#wake();
    if (this.#sentClose) this.#over();
    else this.close();
  }

  /** The connection is gone. */
  lost(): void {
    this.#sentClose = true;
    this.receivedClose();
  }

  async #write(data: Uint8Array, stream: "stdout" | "stderr"): Promise<void> {
    for (let sent = 0; sent < data.length;) {
      if (this.closed.aborted || this.#sentEnd) throw new ChannelClosed();
      const room = Math.min(data.length - sent, this.#sendWindow, this.#packetMax);
      if (room === 0) await this.#mayWrite();
      else if (!this.#transport.isReady) await this.#transport.changed();
      else {
        const piece = Buffer.from(data.buffer, data.byteOffset + sent, room);
        this.#sendWindow -= room;
        sent += room;
        this.#transport.send((protocol) => {
          if (stream === "stdout") protocol.channelData(this.#remoteId, piece);
          else protocol.channelExtData(this.#remoteId, piece, EXTENDED_STDERR);
        });
      }
    }
  }

  #mayWrite(): Promise<void> {
    return new Promise((resolve) => {
      this.#wakeWriter = resolve;
    });
  }

  /** Gives the client leave for what was taken, and for more when the reader keeps up. */
  #grant(): void {
    if (this.#taken < this.#window / 2 || this.#hasEnded || this.closed.aborted) return;
    let bytes = this.#taken;
    const more = Math.min(this.#window, limits.sshWindowMaxBytes - this.#window);
    if (this.#arrived.length === 0 && more > 0 && this.#budget.take(more)) {
      this.#window += more;
      bytes += more;
    }
    this.#taken = 0;
    this.#windowLeft += bytes;
    this.#transport.send((protocol) => protocol.channelWindowAdjust(this.#remoteId, bytes));
  }

  #wake(): void {
    this.#wakeReader?.();
    this.#wakeReader = null;
    this.#wakeWriter?.();
    this.#wakeWriter = null;
  }

  #over(): void {
    if (this.#isGone) return;
    this.#isGone = true;
    this.#arrived.clear();
    this.#budget.give(this.#window);
    this.#gone();
  }
}
