// Ports for tests of the HTTP surface: every sandbox has the same, and the test says which.
import type { ListeningPort, PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { Exposure, PortOperations } from "../../sandbox/ports/operations.ts";

const FREE_PORT = 40_000;

export class FakePorts implements PortOperations {
  listening: ListeningPort[] = [{ port: 80, address: "127.0.0.1", process: "server" }];
  readonly exposed = new Map<number, Exposure>();
  /** Timeouts of the waits, in order. */
  readonly waitsMs: number[] = [];

  async ports(): Promise<readonly ListeningPort[]> {
    return this.listening;
  }

  async waitPort(_: Caller, __: string, port: number, timeoutMs: number): Promise<ListeningPort> {
    this.waitsMs.push(timeoutMs);
    const found = this.listening.find((listening) => listening.port === port);
    if (found === undefined) throw new AgentError("PORT_WAIT_TIMEOUT");
    return found;
  }

  connectPort(): Promise<PortConnection> {
    return Promise.reject(new AgentError("PORT_REFUSED"));
  }

  async expose(_: Caller, __: string, { port, hostPort }: { readonly port: number; readonly hostPort?: number }) {
    const there = this.exposed.get(port);
    if (there !== undefined) return { exposure: there, existing: true };
    const exposure = { port, hostPort: hostPort ?? FREE_PORT };
    this.exposed.set(port, exposure);
    return { exposure, existing: false };
  }

  exposures(): readonly Exposure[] {
    return [...this.exposed.values()];
  }

  async unexpose(_: Caller, __: string, port: number): Promise<void> {
    if (!this.exposed.delete(port)) throw new AgentError("PORT_NOT_EXPOSED");
  }
}
