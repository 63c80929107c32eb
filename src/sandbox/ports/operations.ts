// What can be asked of the ports of a sandbox: what listens, waiting for it, connections to it, and exposing it on the
// host's loopback.
import type { ListeningPort, PortConnection } from "../../contracts/ports.ts";
import type { Caller } from "../operations.ts";

/** A port of a sandbox that the host's loopback leads to. */
export interface Exposure {
  readonly port: number;
  /** On 127.0.0.1 of the host. */
  readonly hostPort: number;
}

/** Every method rejects with `AgentError`: `PORT_…`, `PORTS_BUSY`, and what any call on a guest may. */
export interface PortOperations {
  ports(caller: Caller, id: string): Promise<readonly ListeningPort[]>;
  /** An abort ends the wait for a caller who has left. */
  waitPort(caller: Caller, id: string, port: number, timeoutMs: number, signal?: AbortSignal): Promise<ListeningPort>;
  /** A connection to the sandbox's own loopback and nothing else. Whoever gets it closes it. */
  connectPort(caller: Caller, id: string, port: number): Promise<PortConnection>;
  /** `hostPort` absent = any free one. The same port again answers the exposure that is there. */
  expose(
    caller: Caller,
    id: string,
    request: { readonly port: number; readonly hostPort?: number },
  ): Promise<{ readonly exposure: Exposure; readonly existing: boolean }>;
  exposures(caller: Caller, id: string): readonly Exposure[];
  unexpose(caller: Caller, id: string, port: number): Promise<void>;
}
