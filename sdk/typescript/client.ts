// The agent's API for programs: sandboxes as records, their commands as executions, its events.
import { type EventFilter, type EventFrame, followEvents } from "./events.ts";
import { Execution, type StartRequest } from "./execution.ts";
import type { RetryOptions } from "./retry.ts";
import { type Connection, type RequestOptions, Transport } from "./transport.ts";
import type { CreateSandbox, ExecResult, Execution as ExecutionState, ProcessRequest, VmRecord } from "./types.ts";

export { ApiError, UnreachableError } from "./errors.ts";
export type { EventFilter, EventFrame } from "./events.ts";
export { Execution, type StartRequest } from "./execution.ts";
export type { RetryOptions } from "./retry.ts";
export type { ExitedFrame, OutputFrame } from "./frames.ts";
export type * from "./types.ts";

export interface ClientOptions {
  /** `http://…`, `https://…` or `unix:/PATH`. */
  readonly url: string;
  /** The bearer token. */
  readonly token?: string;
  /** Authority of the agent's certificate, and a client certificate with its key; all PEM. */
  readonly tls?: NonNullable<Connection["tls"]>;
}

/** Every method rejects with `ApiError` or `UnreachableError`. */
export class FluxVm {
  readonly transport: Transport;

  constructor({ url, token, tls }: ClientOptions) {
    const isUnix = url.startsWith("unix:");
    this.transport = new Transport({
      url: isUnix ? "http://localhost" : url.replace(/\/+$/, ""),
      unix: isUnix ? url.slice("unix:".length) : null,
      token: token ?? null,
      tls: tls ?? null,
    });
  }

  create(request: CreateSandbox): Promise<VmRecord> {
    return this.transport.json("POST", "/v1/sandboxes", { json: request });
  }

  async list(filter: { readonly label?: string; readonly name?: string; readonly state?: string } = {}) {
    return (await this.transport.json<{ items: VmRecord[] }>("GET", "/v1/sandboxes", { query: filter })).items;
  }

  get(id: string): Promise<VmRecord> {
    return this.transport.json("GET", sandboxPath(id));
  }

  delete(id: string): Promise<void> {
    return this.transport.json("DELETE", sandboxPath(id));
  }

  /** Runs a command to its end; everything that it started is killed then. */
  process(id: string, request: ProcessRequest, options: Pick<RequestOptions, "signal"> = {}): Promise<ExecResult> {
    return this.transport.json("POST", `${sandboxPath(id)}/process`, { json: request, ...options });
  }

  /** Starts a command that outlives connections, and attaches to it. */
  start(id: string, request: StartRequest, options: RetryOptions = {}): Promise<Execution> {
    return Execution.start(this.transport, id, request, options);
  }

  /** Events from now on, until the signal aborts. */
  events(filter?: EventFilter, options?: RetryOptions): AsyncGenerator<EventFrame, void, void> {
    return followEvents(this.transport, filter, options);
  }

  async executions(id: string): Promise<readonly ExecutionState[]> {
    return (await this.transport.json<{ items: ExecutionState[] }>("GET", `${sandboxPath(id)}/executions`)).items;
  }
}

function sandboxPath(id: string): string {
  return `/v1/sandboxes/${encodeURIComponent(id)}`;
}
