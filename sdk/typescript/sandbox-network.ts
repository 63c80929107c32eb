// The network of one sandbox: what it may send, whether that is in force, and what it sent.
import type { CallOptions } from "./retry.ts";
import { type Query, segment, type Transport } from "./transport.ts";
import type {
  BeginCapture,
  Capture,
  ConnectionEntry,
  DropReason,
  EffectiveNetwork,
  Flow,
  LearnedAddress,
  MigrationState,
  NetworkEdge,
  NetworkPolicy,
  NetworkStats,
  NetworkStatus,
  SetNetworkEdge,
  SetNetworkPolicy,
} from "./types.ts";

export interface LimitOptions extends CallOptions {
  /** 100 when absent, 4096 at most. */
  readonly limit?: number;
}

/** Every method rejects with `ApiError` or `UnreachableError`. */
export class SandboxNetwork {
  readonly #path: string;

  constructor(
    private readonly transport: Transport,
    sandboxId: string,
  ) {
    this.#path = `/v1/vms/${segment(sandboxId)}/network`;
  }

  /** What was declared for it, or what the configuration says. */
  policy(options?: CallOptions): Promise<NetworkPolicy> {
    return this.#call("GET", "/policy", undefined, options);
  }

  /** Replaces it as a whole. Resolves when packets are decided by it; when it rejects, the one before is in force. */
  setPolicy(policy: SetNetworkPolicy, options?: CallOptions): Promise<NetworkPolicy> {
    return this.#call("POST", "/policy", policy, options);
  }

  /** What its interface checks beside the policy. */
  edge(options?: CallOptions): Promise<NetworkEdge> {
    return this.#call("GET", "/edge", undefined, options);
  }

  setEdge(edge: SetNetworkEdge, options?: CallOptions): Promise<NetworkEdge> {
    return this.#call("POST", "/edge", edge, options);
  }

  /** How it is attached, and whether what is declared is in force. */
  status(options?: CallOptions): Promise<NetworkStatus> {
    return this.#call("GET", "/status", undefined, options);
  }

  /** The policy with its groups, entities and names, as packets are decided by it. */
  effective(options?: CallOptions): Promise<EffectiveNetwork> {
    return this.#call("GET", "/effective", undefined, options);
  }

  stats(options?: CallOptions): Promise<NetworkStats> {
    return this.#call("GET", "/stats", undefined, options);
  }

  /** Newest first. */
  flows(options?: LimitOptions): Promise<readonly Flow[]> {
    return this.#items("/flows", options);
  }

  /** What was denied, or with audit would have been: most packets first, then newest. */
  drops(options?: LimitOptions): Promise<readonly DropReason[]> {
    return this.#items("/drop-reasons", options);
  }

  /** Connections whose packets pass without being decided again. */
  connections(options?: LimitOptions): Promise<readonly ConnectionEntry[]> {
    return this.#items("/conntrack", options);
  }

  /** Has every connection decided anew. */
  async forgetConnections(options?: CallOptions): Promise<void> {
    await this.#call("POST", "/conntrack", { action: "flush" }, options);
  }

  /** The IPv4 address that it was seen to have. */
  learnedAddress(options?: CallOptions): Promise<LearnedAddress> {
    return this.#call("GET", "/learned-ip", undefined, options);
  }

  /** Begins to copy its packets for some seconds. Rejects with `CAPTURE_BUSY` while one runs. */
  capture(request: BeginCapture = {}, options?: CallOptions): Promise<Capture> {
    return this.#call("POST", "/capture", request, options);
  }

  /** Those that are kept, newest first. */
  captures(options?: CallOptions): Promise<readonly Capture[]> {
    return this.#items("/capture", options);
  }

  /** The packets of a capture as a pcap file. Rejects with `CAPTURE_BUSY` until it is over. */
  async packets(token: string, { signal }: CallOptions = {}): Promise<Uint8Array> {
    const path = `${this.#path}/capture/${segment(token)}`;
    const response = await this.transport.request("GET", path, { accept: "*/*", signal });
    return new Uint8Array(await response.arrayBuffer());
  }

  migrationState(options?: CallOptions): Promise<MigrationState> {
    return this.#call("GET", "/migration/state", undefined, options);
  }

  /** Established connections go on and no new one begins, until `resume`. */
  quiesce(options?: CallOptions): Promise<MigrationState> {
    return this.#call("POST", "/migration/quiesce", undefined, options);
  }

  exportConnections(options?: CallOptions): Promise<Readonly<Record<string, unknown>>> {
    return this.#call("GET", "/migration/export", undefined, options);
  }

  /** Takes the connections that the same sandbox had elsewhere; no new one begins until `resume`. */
  restoreConnections(document: Readonly<Record<string, unknown>>, options?: CallOptions): Promise<MigrationState> {
    return this.#call("POST", "/migration/restore", document, options);
  }

  resume(options?: CallOptions): Promise<MigrationState> {
    return this.#call("POST", "/migration/resume", undefined, options);
  }

  #call<T>(method: string, path: string, json: unknown, { signal }: CallOptions = {}): Promise<T> {
    return this.transport.json<T>(method, this.#path + path, { json, signal });
  }

  async #items<T>(path: string, { limit, signal }: LimitOptions = {}): Promise<readonly T[]> {
    const query: Query = { limit };
    return (await this.transport.json<{ items: readonly T[] }>("GET", this.#path + path, { query, signal })).items;
  }
}
