// The flux-vm backend: plans a request against this host, launches one hypervisor a sandbox in a jail of its own, and finds
// it again after an agent restart; or, where an operator wants that, runs the machine on threads of the agent. What it holds
// on the host: a control group, a process, and while it starts a mount. Disk and snapshots lie in the sandbox's volume, logs
// and sockets in its directories.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import type { AdoptRequest, Backend, Instance, LaunchRequest, SandboxPlan } from "../../src/contracts/backend.ts";
import { limits } from "../../src/config/limits.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { type CgroupHost, findCgroups, removeCgroups } from "../host/cgroup.ts";
import { writeSeed } from "../host/cloud-init.ts";
import { writeConfigDisk } from "../host/config-disk.ts";
import type { WaitingHelper } from "../host/helper.ts";
import { helperRelease } from "../host/journalled-helper.ts";
import { complaintOf } from "../host/log-tail.ts";
import { groupData, groupPlaces, makeMachineGroups, planGroups } from "../host/machine-cgroup.ts";
import { assertReadableFile, makeOwned, makeRoom } from "../host/machine-places.ts";
import { isAlive } from "../host/process.ts";
import { atMost } from "../host/machine-request.ts";
import { networkLeases, networkWish } from "../host/network-request.ts";
import { tapOf, withTap } from "../host/network/tap.ts";
import { GroupResources } from "../host/resources.ts";
import { uidIsClean } from "../host/uid.ts";
import {
  bootConfig,
  CONSOLE_LOG,
  CONTROL_SOCKET,
  PROCESS_LOG,
  SERIAL_SOCKET,
  VSOCK_SOCKET,
  writeBootConfig,
} from "./boot-config.ts";
import { Control, controlAt } from "./control.ts";
import { imageBytes } from "./image.ts";
import { FluxVmInstance, type FluxVmMachine, PROGRAM } from "./instance.ts";
import { forgetLayerBefore, prepareLayer } from "./layer.ts";
import { makeMemory, MEMORY, releaseMemory } from "./memory.ts";
import type { FluxVmOptions } from "./options.ts";
import { insideJail, PROCESS, startProcess } from "./process.ts";
import { type FluxVmSpec, OVERHEAD_MIB, parseRequest, specOf } from "./request.ts";
import { listSnapshots, removeSnapshot, requireSnapshot, snapshotPath } from "./snapshots.ts";
import { ownIdentity, releaseThreads, startThreads, statusOf, THREADS } from "./threads.ts";

const CGROUP = "flux-vm-cgroup";
const MIB = 1024 * 1024;
const GIB = 1024 * MIB;
/** From the start of the process until the guest's first instruction. */
const RUNNING_TIMEOUT_MS = 60_000;
const BOOT_CONFIG = "boot.json";
const CONFIG_DISK = "config.img";
const SEED_DISK = "seed.img";
const MEMORY_DIR = "memory";
/** Descriptors of the hypervisor from this one on are those that it is given. */
const FIRST_DESCRIPTOR = 3;
/** Snapshots of memory and disk that a volume has room for, beside the disk. */
const SNAPSHOTS_ROOM = 4;

export async function createDriver(context: PluginContext<FluxVmOptions>): Promise<Backend> {
  const { guestAgentPath: guestAgent, hypervisorPath: hypervisor, engineLibraryPath: library, uid } = context.host;
  if (guestAgent === null || hypervisor === null) {
    throw new AgentError("CAPABILITY_MISSING", "this build has no guest agent or no hypervisor");
  }
  const driver = new FluxVmDriver(context, { guestAgent, hypervisor, library }, uid === 0 ? await findCgroups() : null);
  return {
    releases: {
      [CGROUP]: (resource) => removeCgroups(resource.data),
      [PROCESS]: helperRelease(PROGRAM),
      [MEMORY]: releaseMemory,
      [THREADS]: releaseThreads,
    },
    plan: (request) => driver.plan(request),
    launch: (request) => driver.launch(request),
    adopt: (request) => driver.adopt(request),
    consoleLog: (instanceDir) => join(instanceDir, CONSOLE_LOG),
    resources: {
      limit: async (instance, limits) => await machineOf(instance).limit(limits),
      use: async (instance) => await machineOf(instance).resources.use(),
      pressure: async (instance) => await machineOf(instance).resources.pressure(),
      cpuset: async (instance) => await machineOf(instance).resources.cpuset(),
      memory: (instance) => machineOf(instance).memory(),
    },
    pause: {
      pause: (instance) => machineOf(instance).freeze(),
      resume: (instance) => machineOf(instance).resume(),
    },
    snapshots: {
      restores: "in-place",
      save: (instance, volume, tag) => machineOf(instance).save(volume.path, tag),
      list: (_instance, volume) => listSnapshots(volume.path),
      remove: (_instance, volume, tag) => removeSnapshot(volume.path, tag),
      restore: (instance, volume, tag) => machineOf(instance).restore(volume.path, tag),
    },
    dryRun: "snapshot",
    uidIsClean: (leased) => uidIsClean([leased]),
  };
}

function machineOf(instance: Instance): FluxVmInstance {
  if (instance instanceof FluxVmInstance) return instance;
  throw new AgentError("INTERNAL", "this instance is not one of the flux-vm backend");
}

/** Before a guest goes on from a snapshot, the disk of that is copied. */
function runningTimeoutMs({ restore }: LaunchRequest): number {
  return restore === undefined ? RUNNING_TIMEOUT_MS : limits.snapshotTimeoutMs;
}

function isolationOf({ isolation }: FluxVmSpec, isJailed: boolean) {
  if (isolation === "thread") {
    const note = "the machine runs on threads of the agent: it has no jail and ends with the agent";
    return { isolation, notes: [note], endsWithAgent: true };
  }
  const unjailed = "the agent is not root, so the hypervisor is confined by Landlock and has no jail";
  return { isolation: "machine", notes: isJailed ? [] : [unjailed] };
}

interface Programs {
  readonly guestAgent: string;
  readonly hypervisor: string;
  /** Null: this build cannot run machines in the agent. */
  readonly library: string | null;
}

class FluxVmDriver {
  readonly #context: PluginContext<FluxVmOptions>;
  readonly #programs: Programs;
  readonly #cgroups: CgroupHost | null;

  constructor(context: PluginContext<FluxVmOptions>, programs: Programs, cgroups: CgroupHost | null) {
    this.#context = context;
    this.#programs = programs;
    this.#cgroups = cgroups;
  }

  async plan(request: JsonObject): Promise<SandboxPlan> {
    const spec = parseRequest(request, this.#context.options);
    for (const path of [spec.kernel, spec.initrd]) if (path !== null) await assertReadableFile(path);
    const image = await imageBytes(spec.image, spec.image_format);
    atMost("image: GiB of its disk", Math.ceil(image / GIB), this.#context.options.max_disk_gib);
    if (spec.disk_bytes !== null && spec.disk_bytes < image) {
      throw new AgentError("BAD_REQUEST", `disk_size_gib: the image alone has ${Math.ceil(image / GIB)} GiB`);
    }
    if (spec.isolation === "thread") this.#library();
    return {
      spec,
      leases: [...(this.#isJailed(spec) ? ["machine_uid" as const] : []), ...networkLeases(spec.network)],
      network: networkWish(spec.network),
      vcpus: spec.vcpus,
      memoryMib: spec.memory_mib,
      volumeCapBytes: Math.max(spec.disk_bytes ?? image, GIB) + SNAPSHOTS_ROOM * spec.memory_mib * MIB,
      ...isolationOf(spec, this.#isJailed(spec)),
    };
  }

  async launch(request: LaunchRequest): Promise<Instance> {
    const spec = specOf(request.spec);
    if (request.restore !== undefined) await requireSnapshot(request.volume.path, request.restore);
    if (spec.isolation === "thread") return await this.#launchHere(request, spec);
    const control = new Control(controlAt(join(request.socketDir, CONTROL_SOCKET)));
    const helper = await this.#start(request, spec);
    await this.#untilRunning(request, helper, control);
    await forgetLayerBefore(request.volume.path);
    if (this.#isRoot()) await request.resources.release(MEMORY, request.shortName);
    this.#context.log.info({ sandbox: request.sandboxId, pid: helper.identity.pid }, "virtual machine started");
    return await this.#instance(request, control, { identity: helper.identity, exited: helper.exited });
  }

  /** On threads of this process. */
  async #launchHere(request: LaunchRequest, spec: FluxVmSpec): Promise<Instance> {
    const { instanceDir, shortName, resources } = request;
    const start = async (queues: readonly number[]) => {
      const { config } = await this.#prepare(request, spec, null, queues);
      const plan = { library: this.#library(), bootConfig: config, timeoutMs: runningTimeoutMs(request) };
      return await startThreads(resources, shortName, plan);
    };
    const tap = tapOf(request.network, spec.network.queues);
    const threads = await (tap === null ? start([]) : withTap(tap, start));
    await forgetLayerBefore(request.volume.path);
    if (this.#isRoot()) await resources.release(MEMORY, shortName);
    this.#context.log.info({ sandbox: request.sandboxId }, "virtual machine started on threads of the agent");
    const control = new Control((handler) => threads.connectControl(handler));
    const exited = threads.ended.then((end) => statusOf(end, join(instanceDir, PROCESS_LOG)));
    return await this.#instance(request, control, { identity: await ownIdentity(), exited, threads });
  }

  async adopt(request: AdoptRequest): Promise<Instance | null> {
    if (specOf(request.spec).isolation === "thread" || !(await isAlive(request.identity))) return null;
    const control = new Control(controlAt(join(request.socketDir, CONTROL_SOCKET)));
    return await this.#instance(request, control, { identity: request.identity });
  }

  async #instance(
    request: LaunchRequest,
    control: Control,
    process: Pick<FluxVmMachine, "identity" | "exited" | "threads">,
  ): Promise<FluxVmInstance> {
    const { shortName, socketDir, instanceDir, token, readyTimeoutMs } = request;
    return new FluxVmInstance({
      ...process,
      inner: process.threads === undefined ? await insideJail(process.identity) : process.identity,
      control,
      socketDir,
      instanceDir,
      processLog: join(instanceDir, PROCESS_LOG),
      boundsLogs: this.#isJailed(specOf(request.spec)),
      token,
      readyTimeoutMs,
      guest: this.#context.guest,
      resources:
        this.#cgroups === null || process.threads !== undefined
          ? null
          : new GroupResources(groupPlaces(this.#cgroups, shortName)),
      isNew: process.exited !== undefined,
    });
  }

  /** Makes what the machine is made of, and starts its process. */
  async #start(request: LaunchRequest, spec: FluxVmSpec): Promise<WaitingHelper> {
    const { instanceDir, socketDir, volume, shortName, resources } = request;
    const uid = this.#uid(request);
    const cgroups = await this.#makeGroups(request, spec);
    const tap = tapOf(request.network, spec.network.queues);
    const queues = Array.from({ length: tap?.queues ?? 0 }, (_, queue) => FIRST_DESCRIPTOR + queue);
    const { config, disks } = await this.#prepare(request, spec, uid, queues);
    const bootConfig = join(instanceDir, BOOT_CONFIG);
    await writeBootConfig(bootConfig, config);
    const plan = {
      ...this.#programs,
      controlSocket: join(socketDir, CONTROL_SOCKET),
      bootConfig,
      log: join(instanceDir, PROCESS_LOG),
      cgroups,
      tap,
    };
    const places = { spec, read: disks, write: [volume.path, socketDir, instanceDir] };
    return await startProcess(resources, shortName, plan, uid === null ? places : null);
  }

  /** Makes the files of a machine that will run as `uid`, or without a jail, and says what the engine is told of it. */
  async #prepare(request: LaunchRequest, spec: FluxVmSpec, uid: number | null, queues: readonly number[]) {
    const { instanceDir, socketDir, volume, shortName, resources } = request;
    // What an earlier process complained of says nothing of this one.
    await rm(join(instanceDir, PROCESS_LOG), { force: true });
    await makeOwned(socketDir, uid);
    for (const name of [CONTROL_SOCKET, VSOCK_SOCKET, SERIAL_SOCKET]) await makeRoom(join(socketDir, name));
    await prepareLayer(volume.path, request.restore !== undefined);
    const configDisk = join(instanceDir, CONFIG_DISK);
    const hostname = spec.seed?.hostname ?? shortName;
    await writeConfigDisk(configDisk, { token: request.token, hostname, sharedFolders: [] });
    const seedDisk = spec.seed === null ? null : join(instanceDir, SEED_DISK);
    if (spec.seed !== null && seedDisk !== null) {
      await writeSeed(seedDisk, spec.seed, { id: request.sandboxId, hostname });
    }
    const memory = this.#isRoot()
      ? await makeMemory(resources, shortName, join(instanceDir, MEMORY_DIR), spec.memory_mib)
      : null;
    const restore = request.restore === undefined ? null : snapshotPath(volume.path, request.restore);
    const tap = queues.length === 0 ? null : { queues, mac: request.network?.mac ?? null };
    const files = { socketDir, instanceDir, volumeDir: volume.path, configDisk, seedDisk, memory, tap, uid, restore };
    return { config: bootConfig(spec, files), disks: seedDisk === null ? [configDisk] : [configDisk, seedDisk] };
  }

  /** `cgroup.procs` of what was made for the machine. */
  async #makeGroups({ resources, shortName }: LaunchRequest, spec: FluxVmSpec): Promise<readonly string[]> {
    if (this.#cgroups === null) return [];
    const [host, groups] = [this.#cgroups, planGroups(this.#cgroups, shortName)];
    await resources.acquire({ kind: CGROUP, name: shortName, data: groupData(groups) }, () =>
      makeMachineGroups(host, groups, spec.memory_mib + OVERHEAD_MIB),
    );
    return groups.procs;
  }

  /** Rejects with `LAUNCH_FAILED` and what the hypervisor said when it ended instead. */
  async #untilRunning(request: LaunchRequest, helper: WaitingHelper, control: Control): Promise<void> {
    let isOver = false;
    void helper.exited.then(() => {
      isOver = true;
    });
    try {
      await control.untilRunning(runningTimeoutMs(request), () => isOver);
    } catch (error) {
      control.close();
      helper.kill();
      await helper.exited;
      const said = await complaintOf(join(request.instanceDir, PROCESS_LOG), PROGRAM);
      throw new AgentError("LAUNCH_FAILED", said, { cause: error });
    }
  }

  /** Throws `CAPABILITY_MISSING` where machines cannot run in the agent. */
  #library(): string {
    const { library } = this.#programs;
    if (library !== null) return library;
    throw new AgentError("CAPABILITY_MISSING", "isolation: this build has no engine that runs in the agent", {
      details: { capability: "thread" },
    });
  }

  #isJailed({ isolation }: FluxVmSpec): boolean {
    return this.#isRoot() && isolation === "process";
  }

  /** As root every sandbox has a uid of its own, and a jail; otherwise all run as the agent's user. */
  #isRoot(): boolean {
    return this.#context.host.uid === 0;
  }

  #uid({ leases }: LaunchRequest): number | null {
    if (!this.#isRoot()) return null;
    if (leases.machine_uid === undefined) throw new AgentError("INTERNAL", "a virtual machine under root needs a uid");
    return leases.machine_uid;
  }
}
