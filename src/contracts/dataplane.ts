// Dataplanes: what decides each packet of a sandbox. *Attach* puts the host's side of a prepared network under a policy
// before it goes up; *detach* is a release. What is attached goes on deciding while the agent is away; `repair` finds
// it again.
import type { JsonObject } from "./json.ts";
import type { SandboxNetwork } from "./network.ts";
import type { EffectivePolicy } from "./network-policy.ts";
import type { Release, ResourceScope } from "./resource.ts";

export interface AttachRequest {
  readonly sandboxId: string;
  readonly shortName: string;
  /** Null: no interface of the host's, so no packet, so every policy holds. */
  readonly network: SandboxNetwork | null;
  readonly policy: EffectivePolicy;
}

/** How one sandbox is attached, as `GET /v1/vms/{id}/network/status` shows it. */
export interface Attachment {
  readonly attached: boolean;
  readonly interface: string | null;
  readonly pinDir: string | null;
  readonly schemaVersion: number | null;
  readonly schemaCompatible: boolean;
  /** Fingerprint of the policy that packets are decided by; null where there is none. */
  readonly policyFingerprint: string | null;
  /** `tcx`, `tc` or `nft`. */
  readonly method: string | null;
}

/** Of a sandbox without an interface, or one that nothing decides about. */
export const DETACHED: Attachment = {
  attached: false,
  interface: null,
  pinDir: null,
  schemaVersion: null,
  schemaCompatible: true,
  policyFingerprint: null,
  method: null,
};

export interface TrafficStats {
  readonly allowedPackets: bigint;
  readonly allowedBytes: bigint;
  readonly droppedPackets: bigint;
  readonly droppedBytes: bigint;
}

/** Packets of one direction of one connection that were decided alike. */
export interface Flow {
  readonly identity: number;
  readonly family: 4 | 6;
  readonly source: string;
  readonly destination: string;
  readonly sourcePort: number;
  readonly destinationPort: number;
  readonly protocol: number;
  readonly verdict: "allow" | "drop";
  readonly packets: bigint;
  readonly bytes: bigint;
  /** Monotonic clock of the host. */
  readonly lastSeenNs: bigint;
}

/** The number and word of why, as `contract` section 2.3 of the wire has them; `action` says whether audit let it through. */
export interface Drop extends Omit<Flow, "verdict"> {
  readonly reasonCode: number;
  readonly reason: string;
  readonly action: "drop" | "audit";
}

export interface Connection extends Omit<Flow, "verdict" | "packets" | "bytes"> {
  /** `egress`: it began in the sandbox. `reply`: it was begun from outside, and this is the way back. */
  readonly origin: "egress" | "reply";
}

/** Facet: everything that a program in the kernel tells. */
export interface Observation {
  stats(sandboxId: string): Promise<TrafficStats>;
  /** Newest first; of every sandbox when null. */
  flows(sandboxId: string | null, limit: number): Promise<readonly Flow[]>;
  /** Of every sandbox: those that were last seen at `sinceNs` or later, newest first. One pass over what is kept. */
  recentFlows(sinceNs: bigint, limit: number): Promise<readonly Flow[]>;
  /** Most packets first, then newest; of every sandbox when null. */
  drops(sandboxId: string | null, limit: number): Promise<readonly Drop[]>;
  connections(sandboxId: string, limit: number): Promise<readonly Connection[]>;
  /** What the guest was seen to have, and from what (`arp`, `ip`). */
  learnedAddress(sandboxId: string): Promise<{ readonly address: string; readonly source: string } | null>;
}

/** Facet: continuity of connections over a migration; see `docs/network.md`. */
export interface Migration {
  phase(sandboxId: string): Promise<"running" | "quiescing" | "restoring">;
  setPhase(sandboxId: string, phase: "running" | "quiescing" | "restoring"): Promise<void>;
  exportConnections(sandboxId: string): Promise<JsonObject>;
  importConnections(sandboxId: string, document: JsonObject): Promise<void>;
}

/** An endpoint or identity of another network system of the host. Claims of that system, bounded, and nothing more. */
export interface KnownIdentity {
  readonly id: number;
  readonly labels: readonly string[];
}

export interface KnownEndpoint extends KnownIdentity {
  readonly identity: number;
  readonly addresses: readonly string[];
  readonly state: string;
}

/** Facet: another network system that this dataplane lives beside, as it describes itself; empty when it is silent. */
export interface Neighbour {
  endpoints(): Promise<readonly KnownEndpoint[]>;
  identities(): Promise<readonly KnownIdentity[]>;
}

/** What `GET /v1/network/health` adds for this dataplane. */
export interface DataplaneHealth {
  /** Which object is loaded: a path, or `embedded`; null where none is. */
  readonly bpfObject: string | null;
  readonly notes: readonly string[];
}

/** What `repair` found and did. Names are ids of sandboxes. */
export interface RepairReport {
  readonly intact: readonly string[];
  readonly repaired: readonly string[];
  readonly failed: readonly { readonly sandboxId: string; readonly reason: string }[];
  /** Attachments of sandboxes that are no more, removed. */
  readonly orphans: number;
}

export interface Dataplane {
  readonly releases: Readonly<Record<string, Release>>;
  /** The interface is down until this has resolved. Rejects with `CAPABILITY_MISSING` or `DATAPLANE_FAILED`. */
  attach(request: AttachRequest, resources: ResourceScope): Promise<void>;
  /**
   * Replaces the policy of an attached sandbox: no packet that both deny passes, none that both allow is dropped. When
   * it rejects, the old policy is in force.
   */
  setPolicy(sandboxId: string, policy: EffectivePolicy): Promise<void>;
  attachment(sandboxId: string): Promise<Attachment>;
  /**
   * While the agent runs: makes the attachment of one sandbox what `attach` made it, where somebody else broke it, and
   * answers whether it had to. Where nothing is broken it only reads, because it is asked often. Rejects with
   * `DATAPLANE_FAILED` when it cannot; then packets of the sandbox are dropped.
   */
  mend(request: AttachRequest): Promise<boolean>;
  /** After an agent was away: makes every one of `expected` as `attach` left it, and removes what is nobody's. */
  repair(expected: readonly AttachRequest[]): Promise<RepairReport>;
  health(): Promise<DataplaneHealth>;
  readonly observation?: Observation;
  readonly migration?: Migration;
  readonly neighbour?: Neighbour;
}
