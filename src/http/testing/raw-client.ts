// An HTTP client that does what well-behaved clients do not: lie about lengths, drip bytes, stop reading.
import { connect, type Socket } from "node:net";

export class RawClient {
  #received = "";
  readonly closed: Promise<void>;

  private constructor(readonly socket: Socket) {
    socket.on("data", (chunk) => {
      this.#received += chunk.toString("latin1");
    });
    // A reset is one of the ends that a test may expect.
    socket.on("error", () => {});
    this.closed = new Promise((resolve) => socket.once("close", () => resolve()));
  }

  /** Connects to the TCP port of a URL. */
  static open(url: string): Promise<RawClient> {
    const { hostname, port } = new URL(url);
    return new Promise((resolve, reject) => {
      const socket = connect(Number(port), hostname, () => resolve(new RawClient(socket)));
      socket.once("error", reject);
    });
  }

  /** Writes; resolves when the socket takes more. */
  send(data: string | Uint8Array): Promise<void> {
    return new Promise((resolve) => {
      if (this.socket.write(data)) resolve();
      else this.socket.once("drain", () => resolve());
    });
  }

  /** What came so far. */
  get received(): string {
    return this.#received;
  }

  /** Waits until the head and the declared body of one response are there, or the connection ends. */
  async response(): Promise<{ status: number; head: string; body: string }> {
    for (;;) {
      const end = this.#received.indexOf("\r\n\r\n");
      const head = this.#received.slice(0, end);
      const length = Number(/content-length: (\d+)/i.exec(head)?.[1] ?? 0);
      const body = this.#received.slice(end + 4);
      if (end >= 0 && body.length >= length)
        return { status: Number(head.slice(9, 12)), head, body: body.slice(0, length) };
      if (this.socket.destroyed) throw new Error(`the connection ended after ${JSON.stringify(this.#received)}`);
      await Bun.sleep(2);
    }
  }

  close(): void {
    this.socket.destroy();
  }
}
