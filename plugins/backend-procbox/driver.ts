// The process-sandbox backend: plans a request against this host, launches a supervisor, finds it again after an agent
// restart. What it holds on the host: control groups, and one process (the supervisor; everything inside dies with it).
import { mkdir, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { AdoptRequest, Backend, Instance, LaunchRequest, SandboxPlan } from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { NetworkWish, SandboxNetwork } from "../../src/contracts/network.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import type { Resource } from "../../src/contracts/resource.ts";
import { type CgroupHost, findCgroups, removeCgroups } from "../host/cgroup.ts";
import { cgroupData, makeCgroups, planCgroups } from "./cgroup.ts";
import { HostPlans } from "./host-plans.ts";
import { EXIT_RECORD_NAME, lastWords, ProcboxInstance, SOCKET_NAME } from "./instance.ts";
import { ask, type LaunchReport, startLauncher, type WaitingLauncher } from "./launcher.ts";
import type { ProcboxOptions } from "./options.ts";
import { type LaunchConfig, launchConfig, type LaunchNetwork, WORKSPACE_INSIDE } from "./policy.ts";
import { isAlive, killAndWait, recordedIdentity, waitGone } from "../host/process.ts";
import { uidIsClean } from "../host/uid.ts";
import { parseRequest, type ProcboxSpec } from "./request.ts";

const CGROUP = "procbox-cgroup";
const PROCESS = "procbox-process";
/** Where namespaces are pinned, by their names. */
const NAMESPACES = "/run/netns";
const MARKER_NAME = "procbox.json";
const MIB = 1024 * 1024;
/** The supervisor writes its exit record and ends once init is gone. */
const SELF_END_BUDGET_MS = 1_000;

export async function createDriver(context: PluginContext<ProcboxOptions>): Promise<Backend> {
  const { options, host } = context;
  const executable = host.guestAgentPath;
  if (executable === null) throw new AgentError("CAPABILITY_MISSING", "this build has no guest agent");
  const isRoot = host.uid === 0;
  const cgroups = isRoot ? await findCgroups() : null;
  const driver = new ProcboxDriver(context, executable, cgroups);
  return {
    releases: {
      [CGROUP]: (resource) => removeCgroups(resource.data),
      [PROCESS]: releaseProcess,
    },
    plan: (request) => driver.plan(request),
    launch: (request) => driver.launch(request),
    adopt: (request) => driver.adopt(request),
    endOf: async ({ identity, socketDir }) => ((await isAlive(identity)) ? null : lastWords(socketDir)),
    dryRun: "workspace-copy",
    uidIsClean: (uid) => uidIsClean([uid, uid + options.uid_count]),
  };
}

class ProcboxDriver {
  readonly #context: PluginContext<ProcboxOptions>;
  readonly #executable: string;
  readonly #cgroups: CgroupHost | null;
  readonly #hostPlans: HostPlans;

  constructor(context: PluginContext<ProcboxOptions>, executable: string, cgroups: CgroupHost | null) {
    this.#context = context;
    this.#executable = executable;
    this.#cgroups = cgroups;
    this.#hostPlans = new HostPlans((config) => ask(executable, "procbox-plan", config));
  }

  async plan(request: JsonObject): Promise<SandboxPlan> {
    const { options } = this.#context;
    if (!options.enabled) throw new AgentError("PROCBOX_DISABLED");
    const spec = parseRequest(request, options);
    this.#checkPorts(spec);
    const notes = await this.#checkHost(spec);
    const network = this.#networkOf(spec);
    return {
      spec: { ...spec },
      leases: [...(this.#ownUids() ? ["uid" as const] : []), ...(network?.netns === true ? ["address" as const] : [])],
      ...(network === null ? {} : { network }),
      vcpus: 1,
      memoryMib: spec.memory_mib,
      volumeCapBytes: options.max_workspace_mib * MIB,
      isolation: options.isolation,
      notes,
    };
  }

  async launch(request: LaunchRequest): Promise<Instance> {
    const { options, host, guest, log } = this.#context;
    const spec = request.spec as unknown as ProcboxSpec;
    const groups = this.#cgroups === null ? null : planCgroups(this.#cgroups, request.shortName);
    if (this.#cgroups !== null && groups !== null) {
      const [layout, set] = [this.#cgroups, groups];
      await request.resources.acquire({ kind: CGROUP, name: request.shortName, data: cgroupData(set) }, () =>
        makeCgroups(layout, set, { memoryMib: spec.memory_mib, processesMax: spec.max_processes }),
      );
    }
    await mkdir(request.socketDir, { recursive: true, mode: 0o700 });
    // Beside the socket, where the supervisor may write: the instance directory is the agent's alone.
    const exitRecord = join(request.socketDir, EXIT_RECORD_NAME);
    await rm(exitRecord, { force: true });
    const config = launchConfig(spec, options, {
      sandboxId: request.sandboxId,
      socket: join(request.socketDir, SOCKET_NAME),
      workspace: request.volume.path,
      hardCap: request.volume.hardCap,
      agentUid: host.uid,
      sandboxUid: this.#sandboxUid(request),
      cgroup: groups?.leaves ?? null,
      network: launchNetwork(request.network),
      exitRecord,
    });
    await writeMarker(request.instanceDir, spec, config.sandbox_uid);

    const { launcher, report } = await this.#start(request, config, groups?.supervisor ?? null);
    log.info({ sandbox: request.sandboxId, pid: launcher.identity.pid }, "process sandbox started");
    return new ProcboxInstance({
      identity: launcher.identity,
      enforcement: report.enforcement,
      socketDir: request.socketDir,
      token: request.token,
      guest,
      exited: launcher.exited,
    });
  }

  /** The launcher does nothing before it is configured, and its identity is durable before that. */
  async #start(
    request: LaunchRequest,
    config: LaunchConfig,
    cgroup: string | null,
  ): Promise<{ launcher: WaitingLauncher; report: LaunchReport }> {
    const { resources } = request;
    const [kind, name] = [PROCESS, request.shortName];
    let started: WaitingLauncher | null = null;
    try {
      const launcher = await resources.acquire({ kind, name, data: {} }, async () => {
        started = await startLauncher(this.#executable, cgroup);
        return started;
      });
      await resources.update(kind, name, { supervisor: { ...launcher.identity } });
      const report = await launcher.configure(config, request.token);
      await resources.update(kind, name, { supervisor: { ...launcher.identity }, init: { ...report.init } });
      return { launcher, report };
    } catch (error) {
      // The row may not have its identity yet, so its release could not find it.
      (started as WaitingLauncher | null)?.kill();
      throw error;
    }
  }

  async adopt(request: AdoptRequest): Promise<Instance | null> {
    if (!(await isAlive(request.identity))) return null;
    const instance = new ProcboxInstance({
      identity: request.identity,
      enforcement: null,
      socketDir: request.socketDir,
      token: request.token,
      guest: this.#context.guest,
    });
    try {
      await (await instance.channel()).ping();
      return instance;
    } catch (error) {
      this.#context.log.warn({ sandbox: request.sandboxId, err: error }, "a surviving supervisor does not answer");
      await instance.detach();
      return null;
    }
  }

  /** As root every sandbox has a uid of its own; otherwise all run as the agent's user. */
  #ownUids(): boolean {
    return this.#context.host.uid === 0;
  }

  #sandboxUid(request: LaunchRequest): number | null {
    if (!this.#ownUids()) return null;
    const { uid } = request.leases;
    if (uid === undefined) throw new AgentError("INTERNAL", "a sandbox under root needs a uid");
    return uid;
  }

  #checkPorts(spec: ProcboxSpec): void {
    const { options } = this.#context;
    if (spec.net_ports.length === 0) return;
    if (!options.allow_net) {
      throw new AgentError("BAD_REQUEST", "procbox.net_ports needs sandbox.procbox.allow_net in the configuration");
    }
    const reserved = spec.net_ports.filter((port) => options.reserved_ports.includes(port));
    if (reserved.length > 0) {
      throw new AgentError("BAD_REQUEST", `procbox.net_ports: ${reserved.join(", ")} belongs to the agent`);
    }
  }

  /**
   * Under root a sandbox with ports has a network of its own, where a dataplane decides about each packet. An ordinary
   * user's sandbox is in the host's.
   */
  #networkOf({ net_ports: ports }: ProcboxSpec): NetworkWish | null {
    if (ports.length === 0) return null;
    const isOwn = this.#context.host.uid === 0;
    const none = { bridge: null, tap: null, mac: null };
    return { mode: isOwn ? "tap" : "host", guest: "process", netns: isOwn, ...none, queues: 1, ports };
  }

  /** Asks the guest agent to plan the very policy on this kernel; every gap goes into one message. */
  async #checkHost(spec: ProcboxSpec): Promise<string[]> {
    const { options, host } = this.#context;
    const config = launchConfig(spec, options, {
      sandboxId: "plan",
      socket: "/run/plan/agent.sock",
      workspace: host.stateDir,
      hardCap: true,
      agentUid: host.uid,
      sandboxUid: this.#ownUids() ? options.uid_base : null,
      cgroup: this.#cgroups === null ? null : planCgroups(this.#cgroups, "plan").leaves,
      network:
        this.#networkOf(spec)?.netns !== true ? null : { namespace: join(NAMESPACES, "plan"), resolver: "127.0.0.1" },
      exitRecord: "/run/plan/exit.json",
    });
    const { gaps, notes } = await this.#hostPlans.of(JSON.stringify(config));
    if (gaps.length > 0 && !options.best_effort) {
      throw new AgentError("CONFINEMENT_UNAVAILABLE", `this host cannot confine the sandbox: ${gaps.join("; ")}`, {
        details: { gaps: [...gaps] },
      });
    }
    return [...gaps, ...notes];
  }
}

function launchNetwork(network: SandboxNetwork | null): LaunchNetwork | null {
  if (network === null) return null;
  const { namespace, gateway } = network;
  if (namespace === null || gateway === null) throw new AgentError("INTERNAL", "a process sandbox is in a namespace");
  return { namespace: join(NAMESPACES, namespace), resolver: gateway };
}

/** What the sandbox was made with, for people and for tools that read the instance directory. */
async function writeMarker(instanceDir: string, spec: ProcboxSpec, uid: number | null): Promise<void> {
  const marker = { ...spec, uid, workspace: WORKSPACE_INSIDE };
  await writeFile(join(instanceDir, MARKER_NAME), `${JSON.stringify(marker, null, 2)}\n`, { mode: 0o600 });
}

/**
 * Ends the recorded processes and waits until both are gone. Init first: everything inside ends with it, and the
 * supervisor, which then ends by itself, reaps it instead of leaving that to the host.
 */
async function releaseProcess(resource: Resource): Promise<void> {
  const init = recordedIdentity(resource.data.init);
  const supervisor = recordedIdentity(resource.data.supervisor);
  if (init !== null) await killAndWait(init, "init");
  if (supervisor === null) return;
  if (init !== null && (await waitGone(supervisor, SELF_END_BUDGET_MS))) return;
  await killAndWait(supervisor, "supervisor");
}
