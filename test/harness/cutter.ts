// A way to the agent that can be cut: a TCP port that passes bytes on until all of its connections are reset at once.
import { connect, createServer, type AddressInfo, type Socket } from "node:net";

export class Cutter {
  readonly #server;
  readonly #sockets = new Set<Socket>();

  constructor(target: number) {
    this.#server = createServer((client) => {
      const agent = connect(target, "127.0.0.1");
      for (const [from, to] of [
        [client, agent],
        [agent, client],
      ] as const) {
        this.#sockets.add(from);
        from.on("error", () => undefined);
        from.on("close", () => {
          this.#sockets.delete(from);
          to.destroy();
        });
        from.pipe(to);
      }
    }).listen(0, "127.0.0.1");
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port;
  }

  /** Connections that are open, both sides counted. */
  get open(): number {
    return this.#sockets.size;
  }

  cut(): void {
    for (const socket of [...this.#sockets]) socket.destroy();
    this.#sockets.clear();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.cut();
    await new Promise((resolve) => this.#server.close(resolve));
  }
}
