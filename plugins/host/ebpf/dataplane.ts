// The dataplane that programs in the kernel are: one set of programs and maps for the whole host, one element and two
// hooks an interface. What is attached decides by itself, with an agent or without; an agent finds it again by what is
// recorded and pinned.
import { existsSync } from "node:fs";
import { readdir, rm } from "node:fs/promises";
import { join } from "node:path";
import {
  BPF_SCHEMA_VERSION,
  encodeInterfaceConfig,
  type InterfaceConfig,
  MIGRATION_PHASES,
} from "../../../ffi/layout/bpf.ts";
import { limits } from "../../../src/config/limits.ts";
import { atOnce } from "../../../src/contracts/at-once.ts";
import {
  DETACHED,
  type Attachment,
  type AttachRequest,
  type Dataplane,
  type DataplaneHealth,
  type Migration,
  type Observation,
  type RepairReport,
} from "../../../src/contracts/dataplane.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import type { Release, Resource, ResourceScope } from "../../../src/contracts/resource.ts";
import { AgentError } from "../../../src/errors/agent-error.ts";
import {
  type Connected,
  connect,
  detach,
  disconnect,
  placeOf,
  policyInForce,
  recordOf,
  repairAttachment,
  withdraw,
} from "./attachments.ts";
import { type EbpfHost, EbpfHosts, type EbpfSettings } from "./ebpf-host.ts";
import { lookAtHooks } from "./hooks.ts";
import { exportConnections, importConnections, type MigratedFrom } from "./migration.ts";
import { readObject } from "./object-file.ts";
import { connectionsOf, dropsOf, flowsOf, learnedAddressOf, trafficOf } from "./observation.ts";
import { type AttachmentRecord, readRecord, recordedSandboxes, writeFingerprint } from "./record.ts";
import { Turns } from "./turns.ts";

export class EbpfDataplane implements Dataplane {
  readonly releases: Readonly<Record<string, Release>>;
  readonly observation: Observation;
  readonly migration: Migration;
  readonly #settings: EbpfSettings;
  readonly #hosts: EbpfHosts;
  readonly #rowKind: string;
  /** What this agent attached or repaired, each with the policy that is in force. */
  readonly #connected = new Map<string, Connected>();
  /** When the hooks of each were last looked at, in milliseconds of this process. */
  readonly #lookedAt = new Map<string, number>();
  readonly #turns = new Turns();

  /** `id`: of the plugin, with which the kinds of its rows begin. */
  constructor(id: string, settings: EbpfSettings) {
    this.#settings = settings;
    this.#hosts = new EbpfHosts(settings);
    this.#rowKind = `${id}-attachment`;
    this.releases = { [this.#rowKind]: (row) => this.#release(row) };
    this.observation = this.#observe();
    this.migration = this.#migrate();
  }

  async attach(request: AttachRequest, resources: ResourceScope): Promise<void> {
    const { sandboxId, shortName, network } = request;
    if (network === null) return;
    const host = await this.#hosts.openPinned();
    const data = { shortName, interface: network.hostInterface, ifindex: network.hostInterfaceIndex };
    await resources.acquire({ kind: this.#rowKind, name: sandboxId, data }, () =>
      this.#turns.take(sandboxId, async () => {
        const connected = { ...request, network };
        await connect(host, this.#settings, connected);
        this.#connected.set(sandboxId, connected);
      }),
    );
  }

  async setPolicy(sandboxId: string, policy: EffectivePolicy): Promise<void> {
    await this.#turns.take(sandboxId, async () => {
      // Without an interface there is no packet, so every policy holds.
      if (!this.#connected.has(sandboxId) && !existsSync(recordOf(this.#hosts, sandboxId))) return;
      const { host, request, config } = await this.#attached(sandboxId);
      await host.table.enforce(policy, placeOf(config, request.network));
      this.#connected.set(sandboxId, { ...request, policy });
    });
    // In a turn of its own, for which nobody waits.
    void this.#turns.take(sandboxId, () => this.#afterUpdate(sandboxId));
  }

  async attachment(sandboxId: string): Promise<Attachment> {
    const record = this.#record(sandboxId);
    const host = record === null ? null : await this.#hosts.openIfPinned();
    if (record === null || host === null) return DETACHED;
    const hooks = await lookAtHooks({ places: host.places, ...record }, host.programs, record);
    const isAttached = [hooks.in, hooks.out].every((hook) => hook === "ours" || hook === "older");
    return {
      attached: isAttached,
      interface: record.interface,
      pinDir: this.#settings.pinRoot,
      schemaVersion: record.schemaVersion,
      schemaCompatible: record.schemaVersion === BPF_SCHEMA_VERSION,
      policyFingerprint: policyInForce(host.table.inForce(record.ifindex), record),
      method: record.method,
    };
  }

  async mend({ network, ...request }: AttachRequest): Promise<boolean> {
    if (network === null) return false;
    const { sandboxId } = request;
    return await this.#turns.take(sandboxId, async () => {
      const host = await this.#hosts.openPinned();
      const connected = { ...request, network };
      const { step } = await repairAttachment(host, this.#settings, connected);
      this.#connected.set(sandboxId, connected);
      return step !== "none";
    });
  }

  async repair(expected: readonly AttachRequest[]): Promise<RepairReport> {
    const connected = expected.filter((request): request is Connected => request.network !== null);
    const report = { intact: [] as string[], repaired: [] as string[], failed: [] as RepairReport["failed"][number][] };
    if (connected.length === 0 && !(await this.#hasRemains())) return { ...report, orphans: 0 };
    let host: EbpfHost;
    try {
      host = await this.#hosts.openPinned();
    } catch (error) {
      // Most often another agent has this place: then nothing here is this one's.
      const reason = error instanceof Error ? error.message : String(error);
      this.#settings.log.warn({ reason }, "attachments cannot be looked at");
      const failed = connected.map(({ sandboxId }) => ({ sandboxId, reason }));
      return { ...report, failed, orphans: 0 };
    }
    await atOnce(limits.attachmentsRepairedAtOnce, connected, (request) => this.#repairOne(host, request, report));
    return { ...report, orphans: await this.#removeOrphans(host, connected) };
  }

  async health(): Promise<DataplaneHealth> {
    const { pinRoot, object } = this.#settings;
    const notes: string[] = [];
    const found = await readObject(object).catch((error: AgentError) => void notes.push(error.message));
    const isLost = await this.#hosts.hasLostPins().catch(() => false);
    if (isLost) notes.push(`pins below ${pinRoot} are gone, and are made again soon`);
    return { bpfObject: found?.label ?? null, notes };
  }

  /** Writes down for a later agent what is in force, and now and then looks whether packets still get to the program. */
  async #afterUpdate(sandboxId: string): Promise<void> {
    const { log } = this.#settings;
    const request = this.#connected.get(sandboxId);
    if (request === undefined) return;
    try {
      await writeFingerprint(recordOf(this.#hosts, sandboxId), request.policy.fingerprint);
      const now = performance.now();
      if (now - (this.#lookedAt.get(sandboxId) ?? Number.NEGATIVE_INFINITY) < limits.hooksLookedAtAgainMs) return;
      this.#lookedAt.set(sandboxId, now);
      const { step } = await repairAttachment(await this.#hosts.openPinned(), this.#settings, request);
      if (step !== "none") log.warn({ sandbox: sandboxId, step }, "an attachment was not as it was left, and is again");
    } catch (error) {
      log.warn({ sandbox: sandboxId, err: error }, "a policy is in force, and its attachment is not as it should be");
    }
  }

  async #repairOne(
    host: EbpfHost,
    request: Connected,
    report: { intact: string[]; repaired: string[]; failed: RepairReport["failed"][number][] },
  ): Promise<void> {
    const { sandboxId } = request;
    try {
      await this.#turns.take(sandboxId, async () => {
        const { step } = await repairAttachment(host, this.#settings, request);
        this.#connected.set(sandboxId, request);
        (step === "none" ? report.intact : report.repaired).push(sandboxId);
        if (step !== "none") this.#settings.log.info({ sandbox: sandboxId, step }, "attachment repaired");
      });
    } catch (error) {
      const reason = error instanceof Error ? error.message : String(error);
      this.#settings.log.error({ sandbox: sandboxId, err: error }, "attachment cannot be repaired");
      report.failed.push({ sandboxId, reason });
    }
  }

  /** Whether an earlier agent left an attachment. Without one, nothing is opened for a host without networks. */
  async #hasRemains(): Promise<boolean> {
    const { records, links } = this.#hosts.places;
    if ((await recordedSandboxes(records)).length > 0) return true;
    return existsSync(links) && (await readdir(links)).length > 0;
  }

  /** Records, pins and elements that belong to none of `connected`. All below the claimed place is ours. */
  async #removeOrphans(host: EbpfHost, connected: readonly Connected[]): Promise<number> {
    const ids = new Set(connected.map(({ sandboxId }) => sandboxId));
    const shortNames = new Set(connected.map(({ shortName }) => shortName));
    const interfaces = new Set(connected.map(({ network }) => network.hostInterfaceIndex));
    let orphans = 0;
    for (const sandboxId of await recordedSandboxes(host.places.records)) {
      if (ids.has(sandboxId)) continue;
      const record = readRecord(recordOf(host, sandboxId));
      const ifindex = record === null || interfaces.has(record.ifindex) ? 0 : record.ifindex;
      await disconnect(host, this.#settings, { sandboxId, shortName: record?.shortName ?? "", ifindex });
      orphans += 1;
    }
    for (const pin of await readdir(host.places.links)) {
      if (shortNames.has(pin.replace(/-(in|out)$/, ""))) continue;
      await rm(join(host.places.links, pin), { force: true });
    }
    for (const { ifindex } of host.table.found) if (!interfaces.has(ifindex)) withdraw(host, ifindex);
    return orphans;
  }

  async #release({ name: sandboxId, data }: Resource): Promise<void> {
    const { shortName, ifindex } = data;
    if (typeof shortName !== "string" || typeof ifindex !== "number") {
      throw new AgentError("INTERNAL", `the row of attachment ${sandboxId} cannot be read`);
    }
    await this.#turns.take(sandboxId, async () => {
      const host = await this.#hosts.openIfPinned().catch((error: unknown) => {
        this.#settings.log.warn(
          { sandbox: sandboxId, err: error },
          "a policy stays in the maps until they can be opened",
        );
        return null;
      });
      if (host !== null) await disconnect(host, this.#settings, { sandboxId, shortName, ifindex });
      else await detach(this.#hosts, { sandboxId, shortName });
      this.#connected.delete(sandboxId);
      this.#lookedAt.delete(sandboxId);
    });
  }

  /** What is on disk, with what this agent knows better. */
  #record(sandboxId: string): AttachmentRecord | null {
    const record = readRecord(recordOf(this.#hosts, sandboxId));
    const policyFingerprint = this.#connected.get(sandboxId)?.policy.fingerprint;
    return record === null || policyFingerprint === undefined ? record : { ...record, policyFingerprint };
  }

  /** Rejects with `DATAPLANE_FAILED` for a sandbox that is not attached, or whose attachment could not be repaired. */
  async #attached(sandboxId: string): Promise<{ host: EbpfHost; request: Connected; config: InterfaceConfig }> {
    const request = this.#connected.get(sandboxId);
    const host = request === undefined ? null : await this.#hosts.open();
    const config = request === undefined ? null : (host?.table.inForce(request.network.hostInterfaceIndex) ?? null);
    if (request === undefined || host === null || config === null) {
      throw new AgentError("DATAPLANE_FAILED", "the sandbox is not attached to this dataplane");
    }
    return { host, request, config };
  }

  #observe(): Observation {
    /** What is kept is the host's: nothing is kept where nothing was ever attached. */
    const ofAll = async <T>(tell: (host: EbpfHost) => Promise<readonly T[]>): Promise<readonly T[]> => {
      const host = await this.#hosts.openIfPinned();
      return host === null ? [] : await tell(host);
    };
    const identityOf = async (sandboxId: string | null): Promise<number | null> =>
      sandboxId === null ? null : (await this.#attached(sandboxId)).config.identity;
    return {
      stats: async (sandboxId) => {
        const { host, config } = await this.#attached(sandboxId);
        return trafficOf(host.programs.maps, config.slot);
      },
      flows: async (sandboxId, limit) => {
        const identity = await identityOf(sandboxId);
        return await ofAll(({ programs }) => flowsOf(programs.maps, { identity, sinceNs: 0n, limit }));
      },
      recentFlows: (sinceNs, limit) =>
        ofAll(({ programs }) => flowsOf(programs.maps, { identity: null, sinceNs, limit })),
      drops: async (sandboxId, limit) => {
        const identity = await identityOf(sandboxId);
        return await ofAll(({ programs }) => dropsOf(programs.maps, identity, limit));
      },
      connections: async (sandboxId, limit) => {
        const { host, config } = await this.#attached(sandboxId);
        return await connectionsOf(host.programs.maps, config, this.#settings.monotonicNs(), limit);
      },
      learnedAddress: async (sandboxId) => {
        const { host, config } = await this.#attached(sandboxId);
        return learnedAddressOf(host.programs.maps, config.slot);
      },
    };
  }

  #migrate(): Migration {
    const committed = async (sandboxId: string) => {
      const { host, config } = await this.#attached(sandboxId);
      const policyFingerprint = policyInForce(config, this.#record(sandboxId));
      if (policyFingerprint === null) {
        throw new AgentError("DATAPLANE_FAILED", "which policy is in force is not known; apply it again");
      }
      const from: MigratedFrom = {
        sandboxId,
        identity: config.identity,
        schemaVersion: BPF_SCHEMA_VERSION,
        policyFingerprint,
      };
      return { maps: host.programs.maps, config, from };
    };
    return {
      phase: async (sandboxId) => MIGRATION_PHASES[(await this.#attached(sandboxId)).config.phase] ?? "running",
      setPhase: (sandboxId, phase) =>
        this.#turns.take(sandboxId, async () => {
          const { host, request } = await this.#attached(sandboxId);
          host.table.change(request.network.hostInterfaceIndex, (config) =>
            encodeInterfaceConfig({ ...config, phase: MIGRATION_PHASES.indexOf(phase) }),
          );
        }),
      exportConnections: (sandboxId) =>
        this.#turns.take(sandboxId, async () => {
          const { maps, config, from } = await committed(sandboxId);
          return await exportConnections(maps, config, from, this.#settings.monotonicNs());
        }),
      importConnections: (sandboxId, document) =>
        this.#turns.take(sandboxId, async () => {
          const { maps, config, from } = await committed(sandboxId);
          importConnections(maps, config, from, document, this.#settings.monotonicNs());
        }),
    };
  }
}
