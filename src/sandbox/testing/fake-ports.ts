// Ports of a guest in memory: the test says what listens, and holds the other end of each connection.
import type { GuestPorts, ListeningPort, PortConnection } from "../../contracts/ports.ts";
import { AgentError } from "../../errors/agent-error.ts";

/** The guest's end and, as `PortConnection`, the host's. */
export class FakeConnection implements PortConnection {
  readonly received: Uint8Array[] = [];
  /** `open` while the host may still write. */
  host: "open" | "ended" | "closed" = "open";
  /** Set by a test that wants the guest to take nothing. */
  gate: Promise<void> = Promise.resolve();
  /** Pieces that the host has asked for. */
  reads = 0;
  readonly #outgoing: (Uint8Array | null)[] = [];
  #failure: AgentError | null = null;
  #news = Promise.withResolvers<void>();

  get text(): string {
    return Buffer.concat(this.received).toString();
  }

  /** Bytes of the server, null for its end. */
  send(bytes: Uint8Array | string | null): void {
    this.#outgoing.push(typeof bytes === "string" ? Buffer.from(bytes) : bytes);
    this.#wake();
  }

  break(error: AgentError): void {
    this.#failure = error;
    this.#wake();
  }

  /** Resolves when `holds`, which is asked after every change. */
  async until(holds: () => boolean): Promise<void> {
    while (!holds()) await this.#news.promise;
  }

  async read(): Promise<Uint8Array | null> {
    this.reads += 1;
    for (;;) {
      const bytes = this.#outgoing.shift();
      if (bytes !== undefined) return bytes;
      if (this.#failure !== null) throw this.#failure;
      await this.#news.promise;
    }
  }

  async write(data: Uint8Array): Promise<void> {
    await this.gate;
    if (this.#failure !== null) throw this.#failure;
    this.received.push(data);
    this.#wake();
  }

  async end(): Promise<void> {
    this.host = "ended";
    this.#wake();
  }

  close(): void {
    this.host = "closed";
    this.break(new AgentError("GUEST_UNREACHABLE", "closed"));
  }

  #wake(): void {
    const { resolve } = this.#news;
    this.#news = Promise.withResolvers();
    resolve();
  }
}

export class FakePorts implements GuestPorts {
  listening: ListeningPort[] = [];
  readonly connections: FakeConnection[] = [];
  #news = Promise.withResolvers<void>();

  async list(): Promise<readonly ListeningPort[]> {
    return this.listening;
  }

  async wait(port: number, timeoutMs: number): Promise<ListeningPort> {
    const found = this.listening.find((listening) => listening.port === port);
    if (found === undefined) throw new AgentError("PORT_WAIT_TIMEOUT", `nothing in ${timeoutMs} ms`);
    return found;
  }

  async connect(port: number): Promise<PortConnection> {
    if (!this.listening.some((listening) => listening.port === port)) throw new AgentError("PORT_REFUSED");
    const connection = new FakeConnection();
    this.connections.push(connection);
    this.#news.resolve();
    return connection;
  }

  /** The connection of this number, counted from 0, once it is there. */
  async connection(number: number): Promise<FakeConnection> {
    for (;;) {
      const connection = this.connections[number];
      if (connection !== undefined) return connection;
      this.#news = Promise.withResolvers();
      await this.#news.promise;
    }
  }
}
