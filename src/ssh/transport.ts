// The encrypted transport of one connection. ssh2 does key exchange, ciphers and the coding of messages; its own server and
// channel classes are not used, because they bound neither what a client makes them send nor what they keep for it. Here
// everything that waits has a bound: output waits while the client takes none, and a client that takes nothing is not read.
import type { Socket } from "node:net";
import Protocol from "ssh2/lib/protocol/Protocol.js";
import type { ParsedKey } from "ssh2/lib/protocol/keyParser.js";
import { limits } from "../config/limits.ts";

type Handlers = ConstructorParameters<typeof Protocol>[0]["messageHandlers"];

const KEX = ["curve25519-sha256", "curve25519-sha256@libssh.org", ...nist("ecdh-sha2-")];
const CIPHERS = ["aes128-gcm@openssh.com", "aes256-gcm@openssh.com", "aes128-ctr", "aes192-ctr", "aes256-ctr"];
const MACS = ["hmac-sha2-256-etm@openssh.com", "hmac-sha2-512-etm@openssh.com"];

export const DISCONNECT = {
  protocolError: 2,
  serviceNotAvailable: 7,
  byApplication: 11,
  tooManyConnections: 12,
  noMoreAuthMethods: 14,
} as const;

export interface TransportOptions {
  readonly socket: Socket;
  readonly hostKeys: Readonly<Record<string, ParsedKey>>;
  readonly handlers: Handlers;
  /** Nothing more comes or goes. Called once. */
  readonly closed: (reason: string) => void;
}

export class Transport {
  readonly #socket: Socket;
  readonly #protocol: Protocol;
  readonly #closed: (reason: string) => void;
  readonly #waiting = new Set<() => void>();
  #unsent: Buffer[] = [];
  #unsentBytes = 0;
  #isOpen = true;
  #mayRekey = false;
  #exchanges = 0;
  #exchangedAtMs = 0;
  #bytesSinceExchange = 0;

  constructor({ socket, hostKeys, handlers, closed }: TransportOptions) {
    this.#socket = socket;
    this.#closed = closed;
    this.#protocol = new Protocol({
      server: true,
      ident: "FluxVM",
      hostKeys,
      offer: offer(Object.keys(hostKeys)),
      onWrite: (bytes) => this.#write(bytes),
      onError: (error) => this.fail(error.message),
      onHandshakeComplete: () => this.#exchanged(),
      messageHandlers: handlers,
    });
    socket.on("data", (bytes: Buffer) => this.#received(bytes));
    socket.on("drain", () => this.#drained());
    socket.on("end", () => this.fail("the client has gone"));
    socket.on("error", (error: Error) => this.fail(error.message));
    socket.on("close", () => this.fail("the client has gone"));
    this.#protocol.start();
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Whether content may be sent now; messages may always be. */
  get isReady(): boolean {
    return this.#protocol._kexinit === undefined && this.#pendingBytes < limits.sshUnsentBytes;
  }

  /** The client has logged in; until then, keys are exchanged once. */
  allowRekeying(): void {
    this.#mayRekey = true;
  }

  /** Resolves when `isReady` may have become true, or the transport has closed. */
  changed(): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.add(resolve);
    return promise;
  }

  /** Sends one message, unless the transport is closed. */
  send(message: (protocol: Protocol) => void): void {
    if (!this.#isOpen) return;
    try {
      message(this.#protocol);
    } catch (error) {
      this.fail(`a message could not be sent: ${String(error)}`);
    }
  }

  /** Says why, and closes once that is on its way. */
  disconnect(reason: number, text: string): void {
    this.send((protocol) => protocol.disconnect(reason));
    this.#flush();
    this.#over(text);
    this.#socket.end();
    setTimeout(() => this.#socket.destroy(), limits.sshGoodbyeMs).unref();
  }

  /** Closes at once. */
  fail(text: string): void {
    this.#flush();
    this.#over(text);
    this.#socket.destroy();
  }

  #over(text: string): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#protocol.cleanup();
    this.#wake();
    this.#closed(text);
  }

  get #pendingBytes(): number {
    return this.#unsentBytes + this.#socket.writableLength;
  }

  #received(bytes: Buffer): void {
    if (!this.#isOpen) return;
    this.#bytesSinceExchange += bytes.length;
    try {
      this.#protocol.parse(bytes, 0, bytes.length);
    } catch (error) {
      this.fail(error instanceof Error ? error.message : "the client broke the protocol");
      return;
    }
    // A client that makes work and takes no answer waits until it has.
    if (this.#pendingBytes > limits.sshUnsentMaxBytes) this.#socket.pause();
  }

  /** A packet comes in several pieces, which go out together. */
  #write(bytes: Buffer): void {
    if (this.#unsentBytes === 0) queueMicrotask(() => this.#flush());
    this.#unsent.push(bytes);
    this.#unsentBytes += bytes.length;
    this.#bytesSinceExchange += bytes.length;
  }

  #flush(): void {
    if (this.#unsentBytes === 0) return;
    const bytes = this.#unsent.length === 1 ? this.#unsent[0]! : Buffer.concat(this.#unsent);
    this.#unsent = [];
    this.#unsentBytes = 0;
    // What the system takes at once is followed by no event.
    if (this.#socket.writable && this.#socket.write(bytes)) this.#drained();
  }

  #drained(): void {
    if (this.#socket.isPaused()) this.#socket.resume();
    this.#wake();
  }

  #exchanged(): void {
    const isFirst = this.#exchanges++ === 0;
    const isSparse =
      performance.now() - this.#exchangedAtMs >= limits.sshRekeyMinMs ||
      this.#bytesSinceExchange >= limits.sshRekeyMinBytes;
    this.#exchangedAtMs = performance.now();
    this.#bytesSinceExchange = 0;
    if (!isFirst && !(this.#mayRekey && isSparse)) {
      queueMicrotask(() => this.disconnect(DISCONNECT.protocolError, "the client exchanges keys too often"));
      return;
    }
    this.#wake();
  }

  #wake(): void {
    const waiting = [...this.#waiting];
    this.#waiting.clear();
    for (const wake of waiting) wake();
  }
}

function nist(prefix: string): string[] {
  return ["nistp256", "nistp384", "nistp521"].map((curve) => `${prefix}${curve}`);
}

function offer(serverHostKey: readonly string[]) {
  const direction = { cipher: CIPHERS, mac: MACS, compress: ["none"], lang: [] };
  return { kex: KEX, serverHostKey, cs: direction, sc: direction };
}
