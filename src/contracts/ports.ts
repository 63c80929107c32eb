// The TCP ports of a sandbox as its guest agent gives them: its own listen table, waiting for a listener without probing
// it, and connections to the loopback inside the sandbox.
import type { ByteSource } from "./files.ts";

/** A socket of the sandbox that listens for TCP connections. */
export interface ListeningPort {
  readonly port: number;
  /** The address it is bound to, such as `127.0.0.1`, `0.0.0.0` or `::`. */
  readonly address: string;
  /** Name of a process that has it, where the guest can tell. Written by the sandbox: a claim. */
  readonly process: string | null;
}

/**
 * A TCP connection to the loopback inside a sandbox. Each direction ends by itself; `close` breaks off what has not ended,
 * which the server sees as a reset.
 */
export interface PortConnection extends ByteSource {
  /** Resolves when more may be written, which is the back-pressure. Rejects when the other side takes no more. */
  write(data: Uint8Array): Promise<void>;
  /** No more is written; the other side reads its end, and may go on writing. */
  end(): Promise<void>;
}

/** Every method rejects with an `AgentError`: `PORT_…`, `LIMIT_…`, `GUEST_…`, `SANDBOX_GONE`. */
export interface GuestPorts {
  /** By port, then address. Only sockets of the sandbox, also where it shares the host's network. */
  list(): Promise<readonly ListeningPort[]>;
  /**
   * Resolves when something listens on the port; no connection is made to find out. `PORT_WAIT_TIMEOUT` after
   * `timeoutMs`; an abort ends it before.
   */
  wait(port: number, timeoutMs: number, signal?: AbortSignal): Promise<ListeningPort>;
  /** Connects to the port on the sandbox's loopback (IPv4, then IPv6) and to nothing else. `PORT_REFUSED` where nobody listens. */
  connect(port: number): Promise<PortConnection>;
}
