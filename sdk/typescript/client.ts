// The agent's API for programs: where it is, its sandboxes, its events, and what it says about itself.
import { type EventFilter, type EventFrame, type FollowOptions, followEvents, listEvents } from "./events.ts";
import { ApiError } from "./errors.ts";
import { Network } from "./network.ts";
import { Pools } from "./pools.ts";
import type { CallOptions } from "./retry.ts";
import { Sandbox } from "./sandbox.ts";
import { type Connection, segment, Transport } from "./transport.ts";
import type {
  CreateSandbox,
  CreateVm,
  DoctorCheck,
  Event,
  Plugin,
  QuotaUse,
  Readiness,
  Template,
  VmRecord,
} from "./types.ts";

export { ApiError, UnreachableError } from "./errors.ts";
export type { LogOptions } from "./console.ts";
export type { EventFilter, EventFrame, EventPosition, FollowOptions } from "./events.ts";
export { type AttachOptions, Execution, Executions, type StartRequest } from "./execution.ts";
export { ExecutionSocket } from "./execution-socket.ts";
export { Files, type Path, type ReadOptions, type WriteOptions } from "./files.ts";
export type { FlowFilter, FlowFrame, FlowPosition, FollowFlowsOptions } from "./flows.ts";
export type { ExitedFrame, OutputFrame } from "./frames.ts";
export { type HubbleFilter, type HubbleTextOptions, Network, type PolicyDocument } from "./network.ts";
export { type ClaimOptions, Pools } from "./pools.ts";
export { type ExposeOptions, Ports, type WaitOptions } from "./ports.ts";
export type { CallOptions, RetryOptions } from "./retry.ts";
export { Sandbox } from "./sandbox.ts";
export { type LimitOptions, SandboxNetwork } from "./sandbox-network.ts";
export { Snapshots } from "./snapshots.ts";
export type { Content } from "./transport.ts";
export type { WatchFrame } from "./watch.ts";
export type * from "./types.ts";
export type { Execution as ExecutionState } from "./types.ts";

export interface ClientOptions {
  /** `http://…`, `https://…` or, with Bun, `unix:/PATH`. */
  readonly url: string;
  /** The bearer token. */
  readonly token?: string;
  /** With Bun: authority of the agent's certificate, and a client certificate with its key; all PEM. */
  readonly tls?: NonNullable<Connection["tls"]>;
}

export interface CreateOptions extends CallOptions {
  /** The same key with the same request answers the first answer again, so that it can be sent twice. */
  readonly idempotencyKey?: string;
  /** `exec`: resolves when a first command has run, and the record has `phases`. */
  readonly ready?: "exec";
}

/** Every method rejects with `ApiError` or `UnreachableError`. */
export class FluxVm {
  readonly transport: Transport;
  readonly network: Network;
  readonly pools: Pools;

  constructor({ url, token, tls }: ClientOptions) {
    const isUnix = url.startsWith("unix:");
    this.transport = new Transport({
      url: isUnix ? "http://localhost" : url.replace(/\/+$/, ""),
      unix: isUnix ? url.slice("unix:".length) : null,
      token: token ?? null,
      tls: tls ?? null,
    });
    this.network = new Network(this.transport);
    this.pools = new Pools(this.transport);
  }

  create(request: CreateSandbox, options?: CreateOptions): Promise<VmRecord> {
    return this.#create("/v1/sandboxes", request, options);
  }

  /** A virtual machine from its specification. A tenant's token may choose no place of the host. */
  createVm(specification: CreateVm, options?: CreateOptions): Promise<VmRecord> {
    return this.#create("/v1/vms", specification, options);
  }

  list(
    filter: { readonly label?: string; readonly name?: string; readonly state?: string } = {},
    options?: CallOptions,
  ): Promise<readonly VmRecord[]> {
    return this.#items("/v1/sandboxes", filter, options);
  }

  /** A sandbox by its id; nothing is asked before a method is called. */
  sandbox(id: string): Sandbox {
    return new Sandbox(this.transport, id);
  }

  /** Events from now on, or after a position, until the signal aborts. */
  events(filter?: EventFilter, options?: FollowOptions): AsyncGenerator<EventFrame, void, void> {
    return followEvents(this.transport, filter, options);
  }

  /** The newest events that are kept, oldest first. */
  pastEvents(filter?: EventFilter & { readonly limit?: number }, options?: CallOptions): Promise<readonly Event[]> {
    return listEvents(this.transport, filter, options);
  }

  /** What this token uses, and its limits. */
  quota({ signal }: CallOptions = {}): Promise<QuotaUse> {
    return this.transport.json("GET", "/v1/quotas/me", { signal });
  }

  /** What virtual machines can be made from. */
  templates(options?: CallOptions): Promise<readonly Template[]> {
    return this.#items("/v1/templates", {}, options);
  }

  /** Rejects with `TEMPLATE_IN_USE`, which names the dependants, while sandboxes or pools need it. */
  async removeTemplate(name: string, { signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("DELETE", `/v1/templates/${segment(name)}`, { signal });
  }

  plugins(options?: CallOptions): Promise<readonly Plugin[]> {
    return this.#items("/v1/host/plugins", {}, options);
  }

  doctor(options?: CallOptions): Promise<readonly DoctorCheck[]> {
    return this.#items("/v1/host/doctor", {}, options);
  }

  /** Resolves when the agent answers. */
  async health({ signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("GET", "/healthz", { signal });
  }

  /** Whether the agent can do its work, and what is missing. */
  async readiness({ signal }: CallOptions = {}): Promise<Readiness> {
    try {
      return await this.transport.json<Readiness>("GET", "/readyz", { signal });
    } catch (error) {
      if (error instanceof ApiError && error.status === 503 && "ready" in error.body) return error.body as Readiness;
      throw error;
    }
  }

  /** In the Prometheus text format. */
  async metrics({ signal }: CallOptions = {}): Promise<string> {
    return this.transport.text(await this.transport.request("GET", "/metrics", { accept: "text/plain", signal }));
  }

  /** The OpenAPI document of this agent. */
  openapi({ signal }: CallOptions = {}): Promise<Readonly<Record<string, unknown>>> {
    return this.transport.json("GET", "/v1/openapi.json", { signal });
  }

  #create(path: string, json: unknown, { idempotencyKey, ready, signal }: CreateOptions = {}): Promise<VmRecord> {
    const headers = { "idempotency-key": idempotencyKey };
    return this.transport.json("POST", path, { json, query: { ready }, headers, signal });
  }

  async #items<T>(
    path: string,
    query: Readonly<Record<string, string | undefined>>,
    { signal }: CallOptions = {},
  ): Promise<readonly T[]> {
    return (await this.transport.json<{ items: readonly T[] }>("GET", path, { query, signal })).items;
  }
}
