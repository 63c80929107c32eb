// Relays a TCP connection of the host's loopback to a port inside a sandbox. Each direction ends by itself, what breaks on
// one side breaks on the other, and neither side is read faster than the other takes it.
import type { Socket } from "bun";
import type { PortConnection } from "../../contracts/ports.ts";

/** What may wait for the sandbox before the client is read no further. */
const WAITING_MAX_BYTES = 256 * 1024;

export class Relay {
  readonly #socket: Socket<Relay>;
  readonly #waiting: Uint8Array[] = [];
  #waitingBytes = 0;
  #isPaused = false;
  #connection: PortConnection | null = null;
  /** `open` while the client may still send. */
  #client: "open" | "ended" | "broken" = "open";
  /** The sandbox has sent its last. */
  #hasShutDown = false;
  #news = Promise.withResolvers<void>();
  readonly #over = Promise.withResolvers<void>();
  /** Resolves when nothing of this relay is left. */
  readonly over: Promise<void> = this.#over.promise;

  constructor(socket: Socket<Relay>) {
    this.#socket = socket;
  }

  /** Connects and relays until both directions have ended or one has broken. */
  async run(connect: () => Promise<PortConnection>): Promise<void> {
    try {
      const connection = await connect();
      this.#connection = connection;
      if (this.#client === "broken") throw brokenOff();
      await Promise.all([this.#toSandbox(connection), this.#toClient(connection)]);
    } catch {
      // The client is told by a reset, whatever it was: nobody listens, the sandbox has ended, the connection broke.
      this.break();
    } finally {
      this.#over.resolve();
    }
  }

  /** Ends both directions at once, which each side sees as a reset. */
  break(): void {
    if (this.#client !== "broken") {
      this.#client = "broken";
      this.#socket.terminate();
    }
    this.#connection?.close();
    this.#wake();
  }

  received(bytes: Uint8Array): void {
    this.#waiting.push(bytes);
    this.#waitingBytes += bytes.length;
    if (this.#waitingBytes >= WAITING_MAX_BYTES && !this.#isPaused) {
      this.#isPaused = true;
      this.#socket.pause();
    }
    this.#wake();
  }

  drained(): void {
    this.#wake();
  }

  /** The client sends no more. */
  ended(): void {
    if (this.#client === "open") this.#client = "ended";
    this.#wake();
  }

  /** After a shut-down of ours, the client's own end is only told as the close. Any other close breaks what is left. */
  closed(isClean: boolean): void {
    if (isClean && this.#hasShutDown) this.ended();
    else this.break();
  }

  async #toSandbox(connection: PortConnection): Promise<void> {
    for (;;) {
      const bytes = this.#waiting.shift();
      if (bytes !== undefined) {
        await connection.write(bytes);
        this.#waitingBytes -= bytes.length;
        if (this.#isPaused && this.#waitingBytes < WAITING_MAX_BYTES) {
          this.#isPaused = false;
          this.#socket.resume();
        }
      } else if (this.#client === "ended") {
        await connection.end();
        return;
      } else {
        await this.#changed();
      }
    }
  }

  async #toClient(connection: PortConnection): Promise<void> {
    for (;;) {
      const bytes = await connection.read();
      if (bytes === null) break;
      for (let sent = 0; sent < bytes.length;) {
        const count = this.#socket.write(bytes.subarray(sent));
        if (count > 0) sent += count;
        if (sent < bytes.length) await this.#changed();
      }
    }
    this.#hasShutDown = true;
    this.#socket.shutdown();
  }

  /** Resolves when something may have happened at the client. Rejects when it has broken. */
  async #changed(): Promise<void> {
    if (this.#client !== "broken") await this.#news.promise;
    if (this.#client === "broken") throw brokenOff();
  }

  #wake(): void {
    const { resolve } = this.#news;
    this.#news = Promise.withResolvers();
    resolve();
  }
}

function brokenOff(): Error {
  return new Error("the client has broken off");
}
