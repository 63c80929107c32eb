// What can be read of networks: of one sandbox, its policy as it is in force and what the dataplane saw of it; of the
// host, who is connected, which identities and addresses there are, and whether the dataplane can work.
import {
  DETACHED,
  type Attachment,
  type Connection as TrackedConnection,
  type Dataplane,
  type DataplaneHealth,
  type Drop,
  type Flow,
  type Migration,
  type Observation,
  type TrafficStats,
} from "../contracts/dataplane.ts";
import type { EffectivePolicy } from "../contracts/network-policy.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { DataplaneMode } from "./dataplane-choice.ts";
import { believed } from "./declarations.ts";
import { RESERVED_IDENTITIES } from "./entities.ts";
import type { Fabric } from "./fabric.ts";
import { withoutNetwork } from "./failures.ts";
import { mergePolicies, type NetworkGroup } from "./groups.ts";
import type { NetworkEdge, NetworkPolicy } from "./policy.ts";

const NIL_UUID = "00000000-0000-0000-0000-000000000000";
/** Share of all blocks below which addresses are about to run out. */
const NEAR_EXHAUSTION = 0.05;

export interface AddressUse {
  readonly capacity: number;
  readonly allocated: number;
  /** Those of `allocated` whose sandbox is gone, until nothing on the host can be using them. */
  readonly quarantined: number;
}

/** Whether packets are decided by what is declared: `no_network` where there are none to decide, as yet or ever. */
export type Enforcement = "in_force" | "no_network" | "out_of_sync";

export interface StatusView {
  readonly attachment: Attachment;
  readonly identity: number;
  /** Nothing else than what is declared is in force. */
  readonly isSynced: boolean;
  readonly enforcement: Enforcement;
  /** What is declared, or deny-all where that cannot be read. */
  readonly policy: NetworkPolicy;
  /** Why what is stored cannot be used. */
  readonly fault: AgentError | null;
}

export interface EffectiveView {
  readonly identity: number;
  readonly declared: NetworkPolicy;
  readonly groups: readonly NetworkGroup[];
  /** Merged, with the ranges of entities and the addresses of names among what is allowed. */
  readonly effective: NetworkPolicy;
  readonly compiled: EffectivePolicy;
  /** Host names without an address: nothing is allowed by them. */
  readonly unresolved: readonly string[];
}

export interface IdentityView {
  readonly id: number;
  readonly name: string;
  readonly labels: readonly string[];
  readonly reserved: boolean;
}

export interface IpcacheRow {
  readonly ip: string;
  readonly identity: number;
  /** The nil UUID for what is elsewhere. */
  readonly sandboxId: string;
}

export interface EndpointView {
  readonly id: string;
  readonly name: string;
  readonly identity: number;
  readonly labels: readonly string[];
  /** Who says so: this agent, or the network system that it lives beside. */
  readonly source: "fluxvm" | "cilium";
  readonly ipv4: string | null;
  readonly ipv6: string | null;
  readonly isAudited: boolean;
  readonly isSynced: boolean;
}

/** What of networks is on the host, whichever dataplane decides. */
export interface NetworkPresence {
  /** The directory of pinned programs and maps. */
  readonly pinRootPresent: boolean;
  /** A BPF file system for it. */
  readonly bpffsPresent: boolean;
  readonly ciliumSocketPresent: boolean;
}

export interface HealthView extends DataplaneHealth, NetworkPresence {
  readonly mode: DataplaneMode;
  readonly required: boolean;
  readonly defaultAllow: boolean;
  readonly groups: number;
  /** Sandboxes with a policy of their own. */
  readonly policies: number;
  readonly ipcacheEntries: number;
  /** Nothing to note. */
  readonly ok: boolean;
}

interface ViewDependencies {
  readonly dataplane: Dataplane;
  readonly mode: DataplaneMode;
  readonly required: boolean;
  readonly addresses: () => AddressUse;
  readonly presence: () => Promise<NetworkPresence>;
  readonly notes: () => readonly string[];
}

/** Every method on a sandbox rejects with `SANDBOX_NOT_FOUND`. */
export class NetworkViews {
  readonly mode: DataplaneMode;
  readonly required: boolean;

  constructor(
    private readonly fabric: Fabric,
    private readonly dependencies: ViewDependencies,
  ) {
    this.mode = dependencies.mode;
    this.required = dependencies.required;
  }

  async status(id: string): Promise<StatusView> {
    const declared = await this.#declared(id);
    const network = this.fabric.connected.get(id)?.sandbox.network ?? null;
    const attachment = network === null ? DETACHED : await this.dependencies.dataplane.attachment(id);
    const identity = this.fabric.identities.of(id);
    const isSynced =
      network === null
        ? !this.fabric.faults.has(id)
        : this.#isSynced(attachment, this.#wanted(id)?.fingerprint ?? null);
    return {
      attachment,
      identity,
      isSynced,
      enforcement: !isSynced ? "out_of_sync" : network === null ? "no_network" : "in_force",
      policy: declared.policy,
      fault: declared.policyFault ?? declared.edgeFault,
    };
  }

  async effective(id: string): Promise<EffectiveView> {
    const declared = await this.#declared(id);
    const network = this.fabric.connected.get(id)?.sandbox.network ?? null;
    const groups = this.fabric.groupsOf(declared);
    const merged = mergePolicies(believed(declared), groups);
    const compiled = this.fabric.compiled(id, declared, network);
    return {
      identity: compiled.identity,
      declared: declared.policy,
      groups,
      effective: { ...merged, allow_cidrs: [...compiled.allowCidrs], deny_cidrs: [...compiled.denyCidrs] },
      compiled,
      unresolved: this.fabric.hostNames.unresolved(merged.allow_fqdns),
    };
  }

  /** Rejects with `STATE_UNAVAILABLE` where what is stored cannot be believed. */
  async edge(id: string): Promise<NetworkEdge> {
    const { edge, edgeFault } = await this.#declared(id);
    if (edgeFault !== null) throw edgeFault;
    return edge;
  }

  async stats(id: string): Promise<TrafficStats> {
    return await this.#observed(id).stats(id);
  }

  async flows(id: string, limit: number): Promise<readonly Flow[]> {
    return await this.#observed(id).flows(id, limit);
  }

  async drops(id: string, limit: number): Promise<readonly Drop[]> {
    return await this.#observed(id).drops(id, limit);
  }

  async connections(id: string, limit: number): Promise<readonly TrackedConnection[]> {
    return await this.#observed(id).connections(id, limit);
  }

  /** What the guest was seen to use, else what it was given. */
  async learnedAddress(id: string): Promise<{ readonly address: string; readonly source: string } | null> {
    const learned = await this.#observed(id).learnedAddress(id);
    const given = this.fabric.connected.get(id)?.sandbox.network.guestAddress ?? null;
    return learned ?? (given === null ? null : { address: given, source: "lease" });
  }

  /** The facet of a connected sandbox. Throws `INVALID_STATE` without a network, `NOT_SUPPORTED` without the facet. */
  migration(id: string): Migration {
    this.#connected(id);
    const { migration } = this.dependencies.dataplane;
    if (migration === undefined) throw this.#unable("migrate connections");
    return migration;
  }

  /** By id: reserved ones, then groups, then what the neighbour knows beside these. */
  async identities(): Promise<readonly IdentityView[]> {
    const others = (await this.dependencies.dataplane.neighbour?.identities()) ?? [];
    const reserved = [...RESERVED_IDENTITIES].map(([id, name]) => ({
      id,
      name,
      labels: [`reserved:${name}`],
      reserved: true,
    }));
    const groups = this.fabric.groups.all().map(({ identity, name, labels }) => ({
      id: identity,
      name,
      labels,
      reserved: false,
    }));
    const own = [...reserved, ...groups.toSorted((a, b) => a.id - b.id)];
    const known = new Set(own.map(({ id }) => id));
    const foreign = others.filter(({ id }) => !known.has(id));
    return [...own, ...foreign.map(({ id, labels }) => ({ id, name: "", labels, reserved: false }))];
  }

  ipcache(): readonly IpcacheRow[] {
    const here = this.fabric.connected.all().flatMap(({ sandbox }): IpcacheRow[] => {
      const { guestAddress } = sandbox.network;
      const identity = this.fabric.identities.of(sandbox.id);
      return guestAddress === null ? [] : [{ ip: guestAddress, identity, sandboxId: sandbox.id }];
    });
    const elsewhere = this.fabric.remote.rows.flatMap(({ identity, cidrs }) =>
      cidrs.map((ip) => ({ ip, identity, sandboxId: NIL_UUID })),
    );
    return [...here, ...elsewhere];
  }

  ipam() {
    const { capacity, allocated, quarantined } = this.dependencies.addresses();
    const free = Math.max(0, capacity - allocated);
    const utilizationPercent = capacity === 0 ? 100 : Math.round((allocated / capacity) * 1000) / 10;
    const nearExhaustion = free <= capacity * NEAR_EXHAUSTION;
    return { capacity, allocated, quarantined, free, utilizationPercent, nearExhaustion };
  }

  async endpoints(): Promise<readonly EndpointView[]> {
    const neighbours = (await this.dependencies.dataplane.neighbour?.endpoints()) ?? [];
    const neighbourAt = new Map(neighbours.flatMap((one) => one.addresses.map((address) => [address, one] as const)));
    return await Promise.all(
      this.fabric.connected.all().map(async ({ sandbox }): Promise<EndpointView> => {
        const { id, network } = sandbox;
        const { policy } = await this.fabric.declarations.of(id);
        const wanted = this.#wanted(id);
        const attachment = await this.dependencies.dataplane.attachment(id);
        const neighbour = network.guestAddress === null ? undefined : neighbourAt.get(network.guestAddress);
        return {
          id,
          name: this.fabric.dependencies.directory.get(id)?.name ?? id,
          identity: neighbour?.identity ?? this.fabric.identities.of(id),
          labels: neighbour?.labels ?? policy.labels,
          source: neighbour === undefined ? "fluxvm" : "cilium",
          ipv4: network.guestAddress,
          ipv6: wanted?.source.ipv6 ?? null,
          isAudited: wanted?.audit ?? false,
          isSynced: this.#isSynced(attachment, wanted?.fingerprint ?? null),
        };
      }),
    );
  }

  async health(): Promise<HealthView> {
    const { dataplane } = this.dependencies;
    const health = await dataplane.health();
    const notes = [...health.notes];
    const { nearExhaustion } = this.ipam();
    if (nearExhaustion) notes.push("few blocks of addresses are left");
    const faults = this.fabric.faults.summary();
    if (faults !== null) notes.push(faults);
    notes.push(...this.dependencies.notes());
    return {
      ...health,
      ...(await this.dependencies.presence()),
      mode: this.mode,
      required: this.required,
      defaultAllow: this.fabric.declarations.defaults.default_allow,
      groups: this.fabric.groups.all().length,
      policies: (await this.fabric.dependencies.store.ids("network-policy")).length,
      ipcacheEntries: this.ipcache().length,
      ok: notes.length === 0,
      notes,
    };
  }

  async #declared(id: string) {
    this.fabric.known(id);
    const declared = await this.fabric.declarations.of(id);
    return declared;
  }

  /** What is to be in force for one that is connected. */
  #wanted(id: string): EffectivePolicy | null {
    return this.fabric.connected.get(id)?.policy ?? null;
  }

  /** Where nothing is attached, nothing is in force. */
  #isSynced({ attached, policyFingerprint }: Attachment, wanted: string | null): boolean {
    return attached && policyFingerprint === wanted;
  }

  #connected(id: string): void {
    this.fabric.known(id);
    if (this.fabric.connected.get(id) === undefined) throw withoutNetwork();
  }

  #observed(id: string): Observation {
    this.#connected(id);
    const { observation } = this.dependencies.dataplane;
    if (observation === undefined) throw this.#unable("tell what it saw");
    return observation;
  }

  #unable(what: string): AgentError {
    const message = `the dataplane ${this.mode} cannot ${what}: it takes ebpf or cilium`;
    return new AgentError("CAPABILITY_MISSING", message, { details: { capability: "dataplane:observation" } });
  }
}
