// Two dataplanes as one: a sandbox that the first cannot have goes to the second, where the operator allows that and the
// policy loses nothing by it. Who has a sandbox is found again from what is attached.
import type { Attachment, AttachRequest, Dataplane, Observation, RepairReport } from "../contracts/dataplane.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { Logger } from "../contracts/log.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import type { ResourceScope } from "../contracts/resource.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";

export class FallbackDataplane implements Dataplane {
  readonly releases;
  readonly observation?: Observation;
  readonly migration?: NonNullable<Dataplane["migration"]>;
  readonly neighbour?: NonNullable<Dataplane["neighbour"]>;
  /** Sandboxes that the second has; all others are the first's. */
  readonly #second = new Set<string>();

  constructor(
    private readonly first: Dataplane,
    private readonly second: Dataplane,
    private readonly log: Logger,
  ) {
    this.releases = { ...first.releases, ...second.releases };
    if (first.observation !== undefined) this.observation = this.#observe(first.observation);
    if (first.migration !== undefined) this.migration = this.#migrate(first.migration);
    if (first.neighbour !== undefined) this.neighbour = first.neighbour;
  }

  /**
   * Rejects with what the first said when the policy needs it, and when the guest's address is not known, by which alone
   * the second could tell its packets.
   */
  async attach(request: AttachRequest, resources: ResourceScope): Promise<void> {
    const { sandboxId, network, policy } = request;
    const before = resources.held().length;
    this.#second.delete(sandboxId);
    try {
      await this.first.attach(request, resources);
    } catch (error) {
      const reason = asAgentError(error);
      if (network === null || policy.nativeOnly.length > 0) throw nativeOnly(reason, policy);
      if (network.guestAddress === null) throw reason;
      for (const { kind, name } of resources.held().slice(before).toReversed()) await resources.release(kind, name);
      this.log.warn({ sandbox: sandboxId, reason: reason.message }, "nftables decides the packets of this sandbox");
      await this.second.attach(request, resources);
      this.#second.add(sandboxId);
    }
  }

  async setPolicy(sandboxId: string, policy: EffectivePolicy): Promise<void> {
    await this.#of(sandboxId).setPolicy(sandboxId, policy);
  }

  async attachment(sandboxId: string): Promise<Attachment> {
    return await this.#of(sandboxId).attachment(sandboxId);
  }

  async mend(request: AttachRequest): Promise<boolean> {
    return await this.#of(request.sandboxId).mend(request);
  }

  async repair(expected: readonly AttachRequest[]): Promise<RepairReport> {
    const ofSecond: AttachRequest[] = [];
    const ofFirst: AttachRequest[] = [];
    for (const request of expected) {
      const { sandboxId } = request;
      const isSecond =
        !(await this.first.attachment(sandboxId)).attached && (await this.second.attachment(sandboxId)).attached;
      if (isSecond) this.#second.add(sandboxId);
      (isSecond ? ofSecond : ofFirst).push(request);
    }
    const [one, other] = [await this.first.repair(ofFirst), await this.second.repair(ofSecond)];
    return {
      intact: [...one.intact, ...other.intact],
      repaired: [...one.repaired, ...other.repaired],
      failed: [...one.failed, ...other.failed],
      orphans: one.orphans + other.orphans,
    };
  }

  async health() {
    const [one, other] = [await this.first.health(), await this.second.health()];
    return { ...one, notes: [...one.notes, ...other.notes] };
  }

  #of(sandboxId: string): Dataplane {
    return this.#second.has(sandboxId) ? this.second : this.first;
  }

  #refuseSecond(sandboxId: string): void {
    if (!this.#second.has(sandboxId)) return;
    throw new AgentError("NOT_SUPPORTED", "nftables decides the packets of this sandbox, and tells nothing about them");
  }

  #observe(first: Observation): Observation {
    return {
      stats: async (sandboxId) => {
        this.#refuseSecond(sandboxId);
        return await first.stats(sandboxId);
      },
      flows: async (sandboxId, limit) => {
        if (sandboxId !== null) this.#refuseSecond(sandboxId);
        return await first.flows(sandboxId, limit);
      },
      recentFlows: async (sinceNs, limit) => await first.recentFlows(sinceNs, limit),
      drops: async (sandboxId, limit) => {
        if (sandboxId !== null) this.#refuseSecond(sandboxId);
        return await first.drops(sandboxId, limit);
      },
      connections: async (sandboxId, limit) => {
        this.#refuseSecond(sandboxId);
        return await first.connections(sandboxId, limit);
      },
      learnedAddress: async (sandboxId) => {
        this.#refuseSecond(sandboxId);
        return await first.learnedAddress(sandboxId);
      },
    };
  }

  #migrate(first: NonNullable<Dataplane["migration"]>): NonNullable<Dataplane["migration"]> {
    return {
      phase: async (sandboxId) => {
        this.#refuseSecond(sandboxId);
        return await first.phase(sandboxId);
      },
      setPhase: async (sandboxId, phase) => {
        this.#refuseSecond(sandboxId);
        await first.setPhase(sandboxId, phase);
      },
      exportConnections: async (sandboxId) => {
        this.#refuseSecond(sandboxId);
        return await first.exportConnections(sandboxId);
      },
      importConnections: async (sandboxId, document: JsonObject) => {
        this.#refuseSecond(sandboxId);
        await first.importConnections(sandboxId, document);
      },
    };
  }
}

function nativeOnly(reason: AgentError, policy: EffectivePolicy): AgentError {
  if (policy.nativeOnly.length === 0) return reason;
  const fields = policy.nativeOnly.join(", ");
  return new AgentError(reason.code, `${reason.message}; nftables cannot enforce ${fields} instead`, {
    details: { ...reason.details, native_only: [...policy.nativeOnly] },
    cause: reason,
  });
}
