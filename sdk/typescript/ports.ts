// The TCP ports of one sandbox: what listens, waiting for it, and exposing it on the loopback of the agent's host.
import type { CallOptions } from "./retry.ts";
import { segment, type Transport } from "./transport.ts";
import type { ListeningPort, PortExposure } from "./types.ts";

export interface WaitOptions extends CallOptions {
  /** Seconds; 30 when absent, 600 at most. */
  readonly timeoutSeconds?: number;
}

export interface ExposeOptions extends CallOptions {
  /** On 127.0.0.1 of the agent's host; any free one when absent. */
  readonly hostPort?: number;
}

/** Every method rejects with `ApiError` or `UnreachableError`. */
export class Ports {
  readonly #path: string;

  constructor(
    private readonly transport: Transport,
    sandboxId: string,
  ) {
    this.#path = `/v1/sandboxes/${segment(sandboxId)}`;
  }

  /** The sockets of the sandbox that listen, by port. */
  async list({ signal }: CallOptions = {}): Promise<readonly ListeningPort[]> {
    const path = `${this.#path}/ports`;
    return (await this.transport.json<{ items: readonly ListeningPort[] }>("GET", path, { signal })).items;
  }

  /** Resolves when something listens on the port, which no connection disturbs; `PORT_WAIT_TIMEOUT` otherwise. */
  wait(port: number, { timeoutSeconds, signal }: WaitOptions = {}): Promise<ListeningPort> {
    const json = { port, timeout_seconds: timeoutSeconds };
    return this.transport.json("POST", `${this.#path}/ports/wait`, { json, signal });
  }

  /** Leads a port of the host to one of the sandbox. The same port again answers the exposure that is there. */
  expose(port: number, { hostPort, signal }: ExposeOptions = {}): Promise<PortExposure> {
    return this.transport.json("POST", `${this.#path}/expose`, { json: { port, host_port: hostPort }, signal });
  }

  async exposed({ signal }: CallOptions = {}): Promise<readonly PortExposure[]> {
    const path = `${this.#path}/expose`;
    return (await this.transport.json<{ items: readonly PortExposure[] }>("GET", path, { signal })).items;
  }

  /** Cuts the connections that go through it. */
  async unexpose(port: number, { signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("DELETE", `${this.#path}/expose`, { query: { port: String(port) }, signal });
  }
}
