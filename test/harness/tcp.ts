// TCP clients and servers of tests, on the loopback of the host, that see every end for what it is.
import { createServer, type Server, type Socket, connect as open } from "node:net";

export interface Received {
  readonly bytes: Buffer;
  /** `end` when the other side had sent its last, `reset` when the connection broke. */
  readonly end: "end" | "reset";
}

/** A connection whose two directions end apart. */
export class TcpClient {
  readonly #socket: Socket;
  readonly #pieces: Buffer[] = [];
  #news = Promise.withResolvers<void>();
  #end: Received["end"] | null = null;

  private constructor(socket: Socket) {
    this.#socket = socket;
    socket.on("data", (bytes: Buffer) => this.#note(() => this.#pieces.push(bytes)));
    socket.on("end", () => this.#note(() => (this.#end ??= "end")));
    socket.on("error", () => this.#note(() => (this.#end ??= "reset")));
    socket.on("close", () => this.#note(() => (this.#end ??= "reset")));
  }

  /** Rejects when nobody listens; a connection that breaks at once is one that has broken. */
  static connect(port: number): Promise<TcpClient> {
    return new Promise((resolve, reject) => {
      const socket = open({ host: "127.0.0.1", port, allowHalfOpen: true });
      const client = new TcpClient(socket);
      socket.once("connect", () => resolve(client));
      socket.once("error", (error: NodeJS.ErrnoException) => {
        if (error.code === "ECONNREFUSED") reject(error);
        else resolve(client);
      });
    });
  }

  /** Resolves when the kernel has the bytes, which is the back-pressure. */
  write(bytes: Uint8Array | string): Promise<void> {
    return new Promise((resolve) => this.#socket.write(bytes, () => resolve()));
  }

  /** Sends no more. */
  end(): void {
    this.#socket.end();
  }

  /** As a process that is killed with bytes unread. */
  reset(): void {
    this.#socket.resetAndDestroy();
  }

  /** Waits until so many bytes are there. */
  async until(count: number): Promise<Buffer> {
    for (;;) {
      const bytes = Buffer.concat(this.#pieces);
      if (bytes.length >= count) return bytes;
      if (this.#end !== null) throw new Error(`the connection ended (${this.#end}) after ${bytes.length} bytes`);
      await this.#news.promise;
    }
  }

  /** Everything that comes, and how it ends. */
  async rest(): Promise<Received> {
    while (this.#end === null) await this.#news.promise;
    return { bytes: Buffer.concat(this.#pieces), end: this.#end };
  }

  close(): void {
    this.#socket.destroy();
  }

  #note(change: () => unknown): void {
    change();
    const { resolve } = this.#news;
    this.#news = Promise.withResolvers();
    resolve();
  }
}

/** A server that counts who comes. */
export class CountingServer {
  connections = 0;

  private constructor(
    readonly port: number,
    private readonly server: Server,
  ) {}

  /** Rejects when the port is taken. */
  static listen(port = 0): Promise<CountingServer> {
    return new Promise((resolve, reject) => {
      const server = createServer((socket) => {
        counting.connections += 1;
        socket.end("from the host");
      });
      let counting: CountingServer;
      server.once("error", reject);
      server.listen(port, "127.0.0.1", () => {
        const address = server.address();
        counting = new CountingServer(typeof address === "object" && address !== null ? address.port : 0, server);
        resolve(counting);
      });
    });
  }

  close(): Promise<void> {
    return new Promise((resolve) => this.server.close(() => resolve()));
  }
}

/** Whether nobody listens on a port of the host's loopback. */
export async function isFree(port: number): Promise<boolean> {
  try {
    await (await CountingServer.listen(port)).close();
    return true;
  } catch {
    return false;
  }
}
