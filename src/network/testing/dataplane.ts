// A dataplane in memory: it remembers which policy each sandbox has, and fails where a test says so.
import type {
  Attachment,
  AttachRequest,
  Connection,
  Dataplane,
  Drop,
  Flow,
  Migration,
  Observation,
  RepairReport,
  TrafficStats,
} from "../../contracts/dataplane.ts";
import type { JsonObject } from "../../contracts/json.ts";
import type { EffectivePolicy } from "../../contracts/network-policy.ts";
import { AgentError } from "../../errors/agent-error.ts";

export class FakeDataplane implements Dataplane {
  readonly releases = {};
  readonly policies = new Map<string, EffectivePolicy>();
  /** Ids in the order in which policies were set, attaches not among them. */
  readonly applied: string[] = [];
  readonly repairs: AttachRequest[][] = [];
  /** The next so many `setPolicy` of these fail. */
  readonly failures = new Map<string, number>();
  /** Why the attachment of each of these cannot be mended. */
  readonly unmendable = new Map<string, string>();
  /** By which all are attached. */
  method: "tcx" | "tc" | "nft" = "tcx";
  /** How often an attachment was looked at. */
  looks = 0;
  /** The policy is in force although `setPolicy` says that it failed. */
  failsLate = false;
  /** What each `setPolicy` waits for. */
  gate: Promise<void> = Promise.resolve();
  flowsKept: Flow[] = [];
  dropsKept: Drop[] = [];
  connectionsKept: Connection[] = [];
  learned: { readonly address: string; readonly source: string } | null = null;
  readonly #phases = new Map<string, "running" | "quiescing" | "restoring">();

  async attach({ sandboxId, policy }: AttachRequest): Promise<void> {
    await this.gate;
    this.#failAsAsked(sandboxId);
    this.policies.set(sandboxId, policy);
  }

  async setPolicy(sandboxId: string, policy: EffectivePolicy): Promise<void> {
    await this.gate;
    if (this.failsLate) this.policies.set(sandboxId, policy);
    this.#failAsAsked(sandboxId);
    this.policies.set(sandboxId, policy);
    this.applied.push(sandboxId);
  }

  async attachment(sandboxId: string): Promise<Attachment> {
    const policy = this.policies.get(sandboxId);
    return {
      attached: policy !== undefined,
      interface: policy === undefined ? null : "vhaaaaaaaaaaaa",
      pinDir: "/sys/fs/bpf/fluxvm",
      schemaVersion: 1,
      schemaCompatible: true,
      policyFingerprint: policy?.fingerprint ?? null,
      method: this.method,
    };
  }

  async mend({ sandboxId, policy }: AttachRequest): Promise<boolean> {
    const cannot = this.unmendable.get(sandboxId);
    if (cannot !== undefined) throw new AgentError("DATAPLANE_FAILED", cannot);
    this.looks += 1;
    const isWhole = this.policies.has(sandboxId);
    if (!isWhole) this.policies.set(sandboxId, policy);
    return !isWhole;
  }

  async repair(expected: readonly AttachRequest[]): Promise<RepairReport> {
    this.repairs.push([...expected]);
    for (const { sandboxId, policy } of expected) this.policies.set(sandboxId, policy);
    return { intact: expected.map(({ sandboxId }) => sandboxId), repaired: [], failed: [], orphans: 0 };
  }

  async health() {
    return { bpfObject: "embedded", notes: [] };
  }

  readonly observation: Observation = {
    stats: async (): Promise<TrafficStats> => ({
      allowedPackets: 3n,
      allowedBytes: 180n,
      droppedPackets: 1n,
      droppedBytes: 60n,
    }),
    flows: async (_, limit) => this.flowsKept.slice(0, limit),
    recentFlows: async (sinceNs, limit) => this.flowsKept.filter((flow) => flow.lastSeenNs >= sinceNs).slice(0, limit),
    drops: async (_, limit) => this.dropsKept.slice(0, limit),
    connections: async (_, limit) => this.connectionsKept.slice(0, limit),
    learnedAddress: async () => this.learned,
  };

  readonly migration: Migration = {
    phase: async (id) => this.#phases.get(id) ?? "running",
    setPhase: async (id, phase) => void this.#phases.set(id, phase),
    exportConnections: async (id): Promise<JsonObject> => ({ sandbox: id, connections: [] }),
    importConnections: async (id, document) => {
      if (document.sandbox !== id) throw new AgentError("BAD_REQUEST", "connections of another sandbox");
    },
  };

  #failAsAsked(sandboxId: string): void {
    const left = this.failures.get(sandboxId) ?? 0;
    if (left === 0) return;
    this.failures.set(sandboxId, left - 1);
    throw new AgentError("DATAPLANE_FAILED", "as the test asked");
  }
}
