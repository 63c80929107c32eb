// A guest agent made of a script: a test says, connection by connection, what it answers and when it breaks the rules.
import { mkdtempSync, rmSync } from "node:fs";
import type { Socket, UnixSocketListener } from "bun";
import { encodeData, encodeFrame, FrameKind, FrameParser, type Message } from "../frame.ts";
import { MsgpackReader, type Fields } from "../msgpack.ts";

export interface ReceivedFrame {
  readonly stream: number;
  readonly kind: FrameKind;
  readonly message: Fields;
}

export const WELCOME = {
  version: 2,
  agent: "fake/1",
  mode: "procbox",
  boot: "b1",
  features: ["exec", "files", "manifest"],
};

/** One accepted connection. */
export class PeerConnection {
  readonly #socket: Socket<unknown>;
  readonly #parser = new FrameParser((stream, kind, payload) => {
    const reader = new MsgpackReader();
    reader.reset(payload);
    this.#frames.push({ stream, kind, message: reader.wholeMap() });
    this.#wake();
  });
  readonly #frames: ReceivedFrame[] = [];
  #unparsed = Buffer.alloc(0);
  #framed = false;
  #wakeUp = Promise.withResolvers<void>();
  #unsent = Buffer.alloc(0);
  readonly #closed = Promise.withResolvers<void>();
  /** Resolves when the host has closed the connection. */
  readonly closed = this.#closed.promise;

  constructor(socket: Socket<unknown>) {
    this.#socket = socket;
  }

  /** The next line that the host sends, without its newline. */
  async line(): Promise<string> {
    for (;;) {
      const end = this.#unparsed.indexOf(0x0a);
      if (end !== -1) {
        const line = this.#unparsed.subarray(0, end).toString();
        this.#unparsed = this.#unparsed.subarray(end + 1);
        return line;
      }
      await this.#woken();
    }
  }

  /** Answers the preamble and takes HELLO; then WELCOME, unless told otherwise. */
  async welcome(message: Message | null = WELCOME): Promise<Fields> {
    const preamble = await this.line();
    this.write(Buffer.from(`${preamble}\n`));
    this.#framed = true;
    this.#parser.push(this.#unparsed);
    const hello = await this.next();
    if (message !== null) this.send(0, FrameKind.welcome, message);
    return hello.message;
  }

  /** The next frame. */
  async next(): Promise<ReceivedFrame> {
    for (;;) {
      const frame = this.#frames.shift();
      if (frame !== undefined) return frame;
      await this.#woken();
    }
  }

  send(stream: number, kind: FrameKind, message: Message): void {
    this.write(encodeFrame(stream, kind, message));
  }

  data(stream: number, channel: number, content: Uint8Array): void {
    this.write(encodeData(stream, channel, content, false));
  }

  write(bytes: Uint8Array): void {
    this.#unsent = Buffer.concat([this.#unsent, bytes]);
    this.drain();
  }

  /** Stops reading. */
  pause(): void {
    this.#socket.pause();
  }

  /** Reads again. */
  resume(): void {
    this.#socket.resume();
  }

  cut(): void {
    this.#socket.terminate();
  }

  received(bytes: Buffer): void {
    if (this.#framed) this.#parser.push(new Uint8Array(bytes));
    else this.#unparsed = Buffer.concat([this.#unparsed, bytes]);
    this.#wake();
  }

  drain(): void {
    const taken = Math.max(0, this.#socket.write(this.#unsent));
    this.#unsent = this.#unsent.subarray(taken);
  }

  ended(): void {
    this.#closed.resolve();
  }

  #wake(): void {
    this.#wakeUp.resolve();
  }

  async #woken(): Promise<void> {
    await this.#wakeUp.promise;
    this.#wakeUp = Promise.withResolvers();
  }
}

/** Listens on a socket of its own; each connection runs the next script, the last script the rest. */
export class FakePeer {
  readonly path: string;
  readonly #directory = mkdtempSync("/tmp/fluxvm-peer-");
  readonly #listener: UnixSocketListener<unknown>;
  connections = 0;

  constructor(...scripts: ((connection: PeerConnection) => Promise<void>)[]) {
    this.path = `${this.#directory}/agent.sock`;
    const open = new Map<Socket<unknown>, PeerConnection>();
    this.#listener = Bun.listen<unknown>({
      unix: this.path,
      socket: {
        open: (socket) => {
          const connection = new PeerConnection(socket);
          open.set(socket, connection);
          const script = scripts[Math.min(this.connections++, scripts.length - 1)];
          void script?.(connection);
        },
        data: (socket, bytes) => open.get(socket)?.received(bytes),
        drain: (socket) => open.get(socket)?.drain(),
        close: (socket) => open.get(socket)?.ended(),
      },
    });
  }

  stop(): void {
    this.#listener.stop(true);
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
