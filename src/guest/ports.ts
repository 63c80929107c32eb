// The ports of a guest over protocol version 2; each call is a stream of its own.
import { limits } from "../config/limits.ts";
import type { GuestPorts, ListeningPort, PortConnection } from "../contracts/ports.ts";
import type { GuestConnection } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { integer, printable, text } from "./fields.ts";
import { type Message, wide } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import { connectPort } from "./port-connection.ts";
import type { StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

type OnConnection = <T>(operation: (connection: GuestConnection) => Promise<T>) => Promise<T>;

const PORT_MAX = 65_535;

export class ConnectedPorts implements GuestPorts {
  /** `on` runs an operation on a connection that is alive. */
  constructor(private readonly on: OnConnection) {}

  list(): Promise<readonly ListeningPort[]> {
    return this.#call("port-list", {}, limits.guestCallTimeoutMs, ({ ports }) => {
      if (!Array.isArray(ports) || ports.length > limits.portsListedMax)
        throw new ProtocolViolation("no list of ports");
      return ports.map(listeningPort);
    });
  }

  wait(port: number, timeoutMs: number, signal?: AbortSignal): Promise<ListeningPort> {
    const args = { port, timeout_ms: wide(timeoutMs) };
    const read = (reply: Fields): ListeningPort => {
      const found = listeningPort(reply);
      if (found.port !== port) throw new ProtocolViolation("another port than was waited for");
      return found;
    };
    return this.#call("port-wait", args, timeoutMs + limits.guestCallTimeoutMs, read, signal);
  }

  connect(port: number): Promise<PortConnection> {
    return this.on((connection) => connectPort(connection, port));
  }

  #call<T>(op: string, args: Message, timeoutMs: number, read: (reply: Fields) => T, signal?: AbortSignal): Promise<T> {
    return this.on((connection) => {
      const { promise, resolve, reject } = Promise.withResolvers<T>();
      const leave = (): void => connection.abandon(stream, guestUnreachable("the caller has left"));
      const over = (): void => signal?.removeEventListener("abort", leave);
      const handler: StreamHandler = {
        ended: (reply) => {
          resolve(read(reply));
          over();
        },
        failed: (error) => {
          over();
          reject(error);
        },
      };
      const stream = connection.open(op, args, handler, timeoutMs);
      signal?.addEventListener("abort", leave);
      if (signal?.aborted === true) leave();
      return promise;
    });
  }
}

/** Throws `ProtocolViolation`. */
function listeningPort(value: unknown): ListeningPort {
  if (typeof value !== "object" || value === null) throw new ProtocolViolation("a port that is no map");
  const fields = value as Fields;
  const port = integer(fields, "port", PORT_MAX);
  if (port === 0) throw new ProtocolViolation("port 0");
  const { process } = fields;
  return { port, address: text(fields, "address"), process: typeof process === "string" ? printable(process) : null };
}
