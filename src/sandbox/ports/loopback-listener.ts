// A listener on 127.0.0.1 of the host whose connections lead into a sandbox.
import type { TCPSocketListener } from "bun";
import { limits } from "../../config/limits.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { Relay } from "./relay.ts";

export class LoopbackListener {
  readonly #relays = new Set<Relay>();
  readonly #listener: TCPSocketListener<Relay>;

  /** Listens on `port`, or on a free one for 0. Throws `PORT_IN_USE`. */
  constructor(port: number, connect: () => Promise<PortConnection>) {
    try {
      this.#listener = Bun.listen<Relay>({
        hostname: "127.0.0.1",
        port,
        allowHalfOpen: true,
        socket: {
          open: (socket) => {
            const relay = new Relay(socket);
            socket.data = relay;
            if (this.#relays.size >= limits.exposedConnectionsMax) relay.break();
            else this.#run(relay, connect);
          },
          data: ({ data: relay }, bytes) => relay.received(bytes),
          drain: ({ data: relay }) => relay.drained(),
          end: ({ data: relay }) => relay.ended(),
          close: ({ data: relay }, error) => relay.closed(error === undefined),
          // It is closed as well, which is what counts.
          error: () => undefined,
        },
      });
    } catch (cause) {
      throw new AgentError("PORT_IN_USE", undefined, { cause });
    }
  }

  get port(): number {
    return this.#listener.port;
  }

  /** Listens no more and breaks the connections that there are. */
  async close(): Promise<void> {
    this.#listener.stop();
    const relays = [...this.#relays];
    for (const relay of relays) relay.break();
    await Promise.all(relays.map(({ over }) => over));
  }

  #run(relay: Relay, connect: () => Promise<PortConnection>): void {
    this.#relays.add(relay);
    void relay.run(connect).finally(() => this.#relays.delete(relay));
  }
}
