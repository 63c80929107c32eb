// A TCP relay between clients and an agent whose connections break when the test says so.
import { connect, createServer, type AddressInfo, type Server, type Socket } from "node:net";

export class Relay {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Connections that were made, and those that were cut. */
  connections = 0;
  cuts = 0;
  /** While false, nobody gets through. */
  isOpen = true;

  private constructor(port: number) {
    this.#server = createServer((near) => {
      if (!this.isOpen) return near.destroy();
      this.connections += 1;
      const far = connect(port, "127.0.0.1");
      for (const [one, other] of [
        [near, far],
        [far, near],
      ] as const) {
        this.#sockets.add(one);
        one.on("error", () => {});
        one.on("close", () => {
          this.#sockets.delete(one);
          other.destroy();
        });
        one.pipe(other);
      }
    });
  }

  static async start(port: number): Promise<Relay> {
    const relay = new Relay(port);
    await new Promise<void>((resolve) => relay.#server.listen(0, "127.0.0.1", resolve));
    return relay;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  /** Cuts what there is, without a word. */
  cut(): void {
    this.cuts += Math.ceil(this.#sockets.size / 2);
    for (const socket of this.#sockets) socket.resetAndDestroy();
  }

  /** Cuts again and again, after `minMs` to `maxMs` each time, until it is disposed of. */
  cutting(minMs: number, maxMs: number): Disposable {
    let timer: Timer;
    const again = (): void => {
      timer = setTimeout(
        () => {
          this.cut();
          again();
        },
        minMs + Math.random() * (maxMs - minMs),
      );
    };
    again();
    return { [Symbol.dispose]: () => clearTimeout(timer) };
  }

  close(): void {
    this.#server.close();
    this.cut();
  }
}
