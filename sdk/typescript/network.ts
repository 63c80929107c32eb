// The network of every sandbox of a host: groups and imported policies, who is who, addresses, and what flows.
import { type FlowFilter, type FlowFrame, followFlows, type FollowFlowsOptions } from "./flows.ts";
import type { CallOptions } from "./retry.ts";
import { type Query, segment, type Transport } from "./transport.ts";
import type {
  HubbleFlow,
  Ipam,
  IpcacheEntry,
  NamesRefreshed,
  NetworkEndpoint,
  NetworkGroup,
  NetworkHealth,
  NetworkIdentity,
  NetworkSnapshot,
  SetNetworkGroup,
} from "./types.ts";

/** A CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy. */
export type PolicyDocument = Readonly<Record<string, unknown>>;

export interface HubbleFilter {
  readonly limit?: number;
  readonly verdict?: "FORWARDED" | "DROPPED" | "AUDIT";
  /** `tcp`, `udp`, `icmpv4` and so on. */
  readonly protocol?: string;
}

export interface HubbleTextOptions extends HubbleFilter {
  readonly output?: "color" | "plain" | "normal" | "json";
  readonly detailed?: boolean;
}

const BASE = "/v1/network";

/** Every method rejects with `ApiError`, also `HOST_WIDE_REFUSED` for a tenant's token, or `UnreachableError`. */
export class Network {
  constructor(private readonly transport: Transport) {}

  /** Flows that are new or advance, from now on or after a position, until the signal aborts. */
  followFlows(filter?: FlowFilter, options?: FollowFlowsOptions): AsyncGenerator<FlowFrame, void, void> {
    return followFlows(this.transport, filter, options);
  }

  /** By priority, then name. */
  groups(options?: CallOptions): Promise<readonly NetworkGroup[]> {
    return this.#items("/groups", {}, options);
  }

  group(name: string, options?: CallOptions): Promise<NetworkGroup> {
    return this.#call("GET", `/groups/${segment(name)}`, undefined, options);
  }

  /** Makes it, or replaces the one of this name; resolves when it is in force for its members. */
  setGroup(group: SetNetworkGroup, options?: CallOptions): Promise<NetworkGroup> {
    return this.#call("POST", "/groups", group, options);
  }

  /** Also the document that it came from. */
  async removeGroup(name: string, options?: CallOptions): Promise<void> {
    await this.#call("DELETE", `/groups/${segment(name)}`, undefined, options);
  }

  documents(options?: CallOptions): Promise<readonly PolicyDocument[]> {
    return this.#items("/cnp", {}, options);
  }

  document(name: string, options?: CallOptions): Promise<PolicyDocument> {
    return this.#call("GET", `/cnp/${segment(name)}`, undefined, options);
  }

  /** Answers the group that it becomes. Rejects with `POLICY_INVALID` for what a group cannot say exactly. */
  importDocument(document: PolicyDocument, options?: CallOptions): Promise<NetworkGroup> {
    return this.#call("POST", "/cnp", document, options);
  }

  /** Also its group. */
  async removeDocument(name: string, options?: CallOptions): Promise<void> {
    await this.#call("DELETE", `/cnp/${segment(name)}`, undefined, options);
  }

  identities(options?: CallOptions): Promise<readonly NetworkIdentity[]> {
    return this.#items("/identities", {}, options);
  }

  /** Which identity has which address, here and elsewhere. */
  ipcache(options?: CallOptions): Promise<readonly IpcacheEntry[]> {
    return this.#items("/ipcache", {}, options);
  }

  /** Replaces the ranges of an identity that is elsewhere; answers how many it has. */
  async setRemoteRanges(identity: number, cidrs: readonly string[], options?: CallOptions): Promise<number> {
    const json = { identity, cidrs };
    return (await this.#call<{ upserted: number }>("POST", "/ipcache/remote", json, options)).upserted;
  }

  /** Answers how many there were. */
  async removeRemoteRanges(identity: number, options?: CallOptions): Promise<number> {
    const path = `/ipcache/remote/${identity}`;
    return (await this.#call<{ deleted: number }>("DELETE", path, undefined, options)).deleted;
  }

  /** How many blocks of addresses are leased and free. */
  ipam(options?: CallOptions): Promise<Ipam> {
    return this.#call("GET", "/ipam", undefined, options);
  }

  endpoints(options?: CallOptions): Promise<readonly NetworkEndpoint[]> {
    return this.#items("/endpoints", {}, options);
  }

  /** Every note says what is missing. */
  health(options?: CallOptions): Promise<NetworkHealth> {
    return this.#call("GET", "/health", undefined, options);
  }

  /** Health, addresses, counts and endpoints at one moment. */
  observe(options?: CallOptions): Promise<NetworkSnapshot> {
    return this.#call("GET", "/observe", undefined, options);
  }

  /** Resolves the host names of all policies again. */
  refreshNames(options?: CallOptions): Promise<NamesRefreshed> {
    return this.#call("POST", "/refresh-dns", undefined, options);
  }

  /** Flows of all sandboxes with who is at both ends, newest first. */
  hubbleFlows(filter: HubbleFilter = {}, options?: CallOptions): Promise<readonly HubbleFlow[]> {
    return this.#items("/hubble/flows", { ...filter }, options);
  }

  /** The same as lines of text. */
  async hubbleText(query: HubbleTextOptions = {}, { signal }: CallOptions = {}): Promise<string> {
    return await this.#text("/hubble/flows/text", "text/plain", { ...query }, signal);
  }

  /** The same as a page. */
  async hubblePage({ signal }: CallOptions = {}): Promise<string> {
    return await this.#text("/hubble/ui", "text/html", {}, signal);
  }

  async #text(path: string, accept: string, query: Query, signal: AbortSignal | undefined): Promise<string> {
    return this.transport.text(await this.transport.request("GET", BASE + path, { accept, query, signal }));
  }

  #call<T>(method: string, path: string, json: unknown, { signal }: CallOptions = {}): Promise<T> {
    return this.transport.json<T>(method, BASE + path, { json, signal });
  }

  async #items<T>(path: string, query: Query, { signal }: CallOptions = {}): Promise<readonly T[]> {
    return (await this.transport.json<{ items: readonly T[] }>("GET", BASE + path, { query, signal })).items;
  }
}
