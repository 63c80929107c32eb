// The QEMU backend: plans a request against this host, launches one QEMU process a sandbox with a user of its own and no
// more rights than it needs, and finds it again after an agent restart. What it holds on the host: a control group and a
// process. Disk and snapshots lie in the sandbox's volume, logs and sockets in its directories.
import { access, lstat, rm, stat } from "node:fs/promises";
import { join } from "node:path";
import type {
  AdoptRequest,
  Backend,
  Instance,
  LaunchRequest,
  ProcessIdentity,
  SandboxPlan,
} from "../../src/contracts/backend.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { PluginContext } from "../../src/contracts/plugin.ts";
import type { Volume } from "../../src/contracts/storage.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { type CgroupHost, findCgroups, removeCgroups } from "../host/cgroup.ts";
import { writeConfigDisk } from "../host/config-disk.ts";
import type { WaitingHelper } from "../host/helper.ts";
import { helperRelease, startJournalled } from "../host/journalled-helper.ts";
import { networkLeases, networkWish } from "../host/network-request.ts";
import { tapOf } from "../host/network/tap.ts";
import { assertReadable, assertReadableFile, makeOwned } from "../host/machine-places.ts";
import { isAlive } from "../host/process.ts";
import { GroupResources, memoryOf } from "../host/resources.ts";
import { uidIsClean } from "../host/uid.ts";
import {
  AGENT_SOCKET,
  CONSOLE_LOG,
  type MachineFiles,
  QMP_SOCKET,
  qemuArguments,
  rootDevice,
  SERIAL_SOCKET,
} from "./arguments.ts";
import { type QemuHost, qemuHost } from "./capabilities.ts";
import { groupData, groupPlaces, type MachineGroups, makeMachineGroups, planGroups } from "../host/machine-cgroup.ts";
import { clockArguments } from "./clock.ts";
import { cidIsUnused, VSOCK_DEVICE } from "./channel.ts";
import { writeSeed } from "../host/cloud-init.ts";
import { isLimited } from "./disk-limits.ts";
import { type DiskTool, ensureDisk, listSnapshots, PROGRAM_PATHS, removeSnapshot } from "./disk-tool.ts";
import {
  FILE_SERVER,
  findFileServer,
  releaseFileServer,
  serveFolders,
  servingFolders,
  withoutFileServer,
} from "./file-server.ts";
import { QemuInstance } from "./instance.ts";
import { complaintOf } from "../host/log-tail.ts";
import { Monitor } from "./monitor.ts";
import type { QemuOptions } from "./options.ts";
import { OVERHEAD_MIB, parseRequest, type QemuSpec, specOf } from "./request.ts";
import { assertShareable, foldersForGuest, SERVER_MIB } from "./shared-folders.ts";

const CGROUP = "qemu-cgroup";
const PROCESS = "qemu-process";
const MIB = 1024 * 1024;
const GIB = 1024 * MIB;
const MONITOR_TIMEOUT_MS = 30_000;
const OPEN_FILES = 4096;
const DEVICES = ["/dev/null", "/dev/urandom"];
const WORK_DIR = "machine";
const PROCESS_LOG = "qemu.log";
const DISK_TOOL = "qemu-img";
const CONFIG_DISK = "config.img";
const SEED_DISK = "seed.img";
/** Snapshots of memory and disk that a volume has room for, beside the disk. */
const SNAPSHOTS_ROOM = 4;
/** The number under which QEMU has the first of the files that are passed to it. */
const FIRST_DESCRIPTOR = 3;
const VHOST_NET_DEVICE = "/dev/vhost-net";

export async function createDriver(context: PluginContext<QemuOptions>): Promise<Backend> {
  const { host, options, report } = context;
  const guestAgent = host.guestAgentPath;
  if (guestAgent === null) throw new AgentError("CAPABILITY_MISSING", "this build has no guest agent");
  const cgroups = host.uid === 0 ? await findCgroups() : null;
  const driver = new QemuDriver(context, qemuHost(options, report), guestAgent, cgroups);
  return {
    releases: {
      [CGROUP]: (resource) => removeCgroups(resource.data),
      [PROCESS]: helperRelease("QEMU"),
      [FILE_SERVER]: releaseFileServer,
    },
    plan: (request) => driver.plan(request),
    launch: (request) => driver.launch(request),
    adopt: (request) => driver.adopt(request),
    consoleLog: (instanceDir) => join(instanceDir, WORK_DIR, CONSOLE_LOG),
    resources: {
      limit: async (instance, limits) => await machineOf(instance).limit(limits),
      use: async (instance) => await machineOf(instance).resources.use(),
      pressure: async (instance) => await machineOf(instance).resources.pressure(),
      cpuset: async (instance) => await machineOf(instance).resources.cpuset(),
      memory: (instance) => memoryOf(instance.identity),
    },
    pause: {
      pause: (instance) => machineOf(instance).monitor.freeze(),
      resume: (instance) => machineOf(instance).monitor.resume(),
    },
    snapshots: {
      restores: "relaunch",
      save: (instance, _volume, tag) => machineOf(instance).save(tag),
      list: async (instance, volume) =>
        instance === null
          ? await listSnapshots(await driver.offlineTool(volume))
          : await machineOf(instance).monitor.snapshots(),
      remove: async (instance, volume, tag) =>
        instance === null
          ? await removeSnapshot(await driver.offlineTool(volume), tag)
          : await machineOf(instance).monitor.remove(tag),
    },
    dryRun: "snapshot",
    uidIsClean: (uid) => uidIsClean([uid]),
    cidIsFree: cidIsUnused,
  };
}

function machineOf(instance: Instance): QemuInstance {
  if (instance instanceof QemuInstance) return instance;
  throw new AgentError("INTERNAL", "this instance is not one of the QEMU backend");
}

class QemuDriver {
  readonly #context: PluginContext<QemuOptions>;
  readonly #host: QemuHost;
  readonly #guestAgent: string;
  readonly #cgroups: CgroupHost | null;

  constructor(context: PluginContext<QemuOptions>, host: QemuHost, guestAgent: string, cgroups: CgroupHost | null) {
    this.#context = context;
    this.#host = host;
    this.#guestAgent = guestAgent;
    this.#cgroups = cgroups;
  }

  async plan(request: JsonObject): Promise<SandboxPlan> {
    const spec = parseRequest(request, this.#context.options, this.#host);
    await clockArguments(spec);
    await assertReadable(spec.image);
    for (const path of [spec.kernel, spec.initrd]) if (path !== null) await assertReadableFile(path);
    const image = (await stat(spec.image)).size;
    if (spec.shared_folders.length > 0) await this.#assertSharesFolders(spec);
    return {
      spec,
      leases: [
        ...(this.#isRoot() ? ["machine_uid" as const] : []),
        ...(spec.channel === "vsock" ? ["cid" as const] : []),
        ...networkLeases(spec.network),
      ],
      network: networkWish(spec.network),
      vcpus: spec.vcpus,
      memoryMib: spec.memory_mib,
      volumeCapBytes: Math.max(spec.disk_bytes ?? 0, image, GIB) + SNAPSHOTS_ROOM * spec.memory_mib * MIB,
      isolation: "machine",
      notes: this.#host.withoutKvm === null ? [] : [`the guest is emulated and slow: ${this.#host.withoutKvm}`],
    };
  }

  async launch(request: LaunchRequest): Promise<Instance> {
    const spec = specOf(request.spec);
    const [uid, cid] = [this.#uid(request), cidOf(request)];
    const workDir = join(request.instanceDir, WORK_DIR);
    await makeOwned(workDir, uid);
    await makeOwned(request.socketDir, uid);
    for (const name of [QMP_SOCKET, AGENT_SOCKET, SERIAL_SOCKET])
      await rm(join(request.socketDir, name), { force: true });
    const beganMs = performance.now();
    const tool = this.#tool(request.volume, join(request.instanceDir, `${DISK_TOOL}.log`), uid);
    await ensureDisk(tool, spec, this.#context.options.max_disk_gib);
    const diskMs = performance.now() - beganMs;
    const configDisk = join(request.instanceDir, CONFIG_DISK);
    const hostname = spec.seed?.hostname ?? request.shortName;
    const sharedFolders = foldersForGuest(spec.shared_folders);
    await writeConfigDisk(configDisk, { token: request.token, hostname, sharedFolders });
    const seedDisk = spec.seed === null ? null : join(request.instanceDir, SEED_DISK);
    if (spec.seed !== null && seedDisk !== null) {
      await writeSeed(seedDisk, spec.seed, { id: request.sandboxId, hostname });
    }
    const groups = await this.#makeGroups(request, spec);
    const processLog = join(request.instanceDir, PROCESS_LOG);
    const servers = await this.#serveFolders(request, spec, groups, processLog);
    const passed: string[] = [];
    const pass = (path: string): number => FIRST_DESCRIPTOR + passed.push(path) - 1;
    const files: Omit<MachineFiles, "tap"> = {
      shortName: request.shortName,
      socketDir: request.socketDir,
      workDir,
      volumeDir: request.volume.path,
      image: pass(spec.image),
      config: pass(configDisk),
      seed: seedDisk === null ? null : pass(seedDisk),
      vsock: cid === null ? null : { cid, descriptor: pass(VSOCK_DEVICE) },
      kernelArguments: await clockArguments(spec),
    };
    const tap = tapOf(request.network, spec.network.queues);
    const vhost = tap !== null && (await hasVhostNet()) ? range(tap.queues).map(() => pass(VHOST_NET_DEVICE)) : [];
    const queues = range(tap?.queues ?? 0).map((queue) => FIRST_DESCRIPTOR + passed.length + queue);
    const mac = request.network?.mac ?? null;
    const card = tap === null || mac === null ? null : { mac, queues, vhost };
    const row = { kind: PROCESS, name: request.shortName };
    const helper = await startJournalled(request.resources, row, this.#guestAgent, {
      program: this.#host.qemu,
      arguments: qemuArguments(spec, { ...files, tap: card }),
      env: { PATH: "/usr/bin:/bin" },
      directory: "/",
      log: processLog,
      uid,
      groups: [],
      cgroups: groups?.procs ?? [],
      own_network: uid !== null && spec.network.mode !== "user",
      ...(tap === null ? {} : { tap }),
      devices: [...DEVICES, ...(spec.accel === "kvm" ? ["/dev/kvm"] : [])],
      descriptors: passed,
      read_paths: readPaths(spec),
      write_paths: [workDir, request.socketDir, request.volume.path],
      open_files: OPEN_FILES,
    });
    const monitor = await this.#run(request, helper);
    this.#tellStart(request, helper, monitor, diskMs);
    return new QemuInstance({
      identity: helper.identity,
      monitor,
      socketDir: request.socketDir,
      workDir,
      processLog,
      token: request.token,
      readyTimeoutMs: request.readyTimeoutMs,
      cid: cidOf(request),
      guest: this.#context.guest,
      resources: this.#resources(request.shortName),
      rootDevice: rootDevice(spec),
      servers,
      isNew: true,
      exited: helper.exited,
    });
  }

  async adopt(request: AdoptRequest): Promise<Instance | null> {
    if (!(await isAlive(request.identity))) return null;
    return new QemuInstance({
      identity: request.identity,
      monitor: Monitor.adopt(join(request.socketDir, QMP_SOCKET)),
      socketDir: request.socketDir,
      workDir: join(request.instanceDir, WORK_DIR),
      processLog: join(request.instanceDir, PROCESS_LOG),
      token: request.token,
      readyTimeoutMs: request.readyTimeoutMs,
      cid: cidOf(request),
      guest: this.#context.guest,
      resources: this.#resources(request.shortName),
      rootDevice: rootDevice(specOf(request.spec)),
      servers: servingFolders(request),
      isNew: false,
    });
  }

  /** For the disk of a sandbox that does not run; its user owns the volume. */
  async offlineTool(volume: Volume): Promise<DiskTool> {
    const owner = (await lstat(volume.path)).uid;
    const output = join(this.#context.host.runDir, `${DISK_TOOL}-${volume.name}.log`);
    return this.#tool(volume, output, this.#isRoot() ? owner : null);
  }

  async #makeGroups(request: LaunchRequest, spec: QemuSpec): Promise<MachineGroups | null> {
    if (this.#cgroups === null) return null;
    const [host, groups] = [this.#cgroups, planGroups(this.#cgroups, request.shortName)];
    await request.resources.acquire({ kind: CGROUP, name: request.shortName, data: groupData(groups) }, () =>
      makeMachineGroups(host, groups, spec.memory_mib + OVERHEAD_MIB + spec.shared_folders.length * SERVER_MIB),
    );
    return groups;
  }

  /** What a machine with shared folders needs of the host, and what of the host it may have. */
  async #assertSharesFolders({ shared_folders: folders }: QemuSpec): Promise<void> {
    const { host, options } = this.#context;
    if (!this.#isRoot()) {
      throw new AgentError("CAPABILITY_MISSING", "shared folders need an agent that is root", {
        details: { capability: "shared_folders" },
      });
    }
    await assertShareable(folders, host);
    if ((await findFileServer(options.virtiofsd_binary)) === null) throw withoutFileServer(options.virtiofsd_binary);
  }

  async #serveFolders(
    request: LaunchRequest,
    spec: QemuSpec,
    groups: MachineGroups | null,
    log: string,
  ): Promise<ProcessIdentity[]> {
    const uid = this.#uid(request);
    if (spec.shared_folders.length === 0 || uid === null) return [];
    await assertShareable(spec.shared_folders, this.#context.host);
    const { virtiofsd_binary: wanted } = this.#context.options;
    const host = { guestAgent: this.#guestAgent, wanted, uid, cgroups: groups?.procs ?? [], log };
    return await serveFolders(request, spec.shared_folders, host);
  }

  /** Lets the machine run, from its beginning or from a snapshot. */
  async #run(request: LaunchRequest, helper: WaitingHelper): Promise<Monitor> {
    let isOver = false;
    void helper.exited.then(() => {
      isOver = true;
    });
    try {
      const path = join(request.socketDir, QMP_SOCKET);
      const monitor = await Monitor.connect(path, MONITOR_TIMEOUT_MS, () => isOver);
      const spec = specOf(request.spec);
      // A new QEMU has no limits, so there is nothing to ask it where none are wanted.
      if (isLimited(spec)) await monitor.limitDisk(rootDevice(spec), spec);
      if (request.restore !== undefined) await monitor.load(request.restore);
      await monitor.resume();
      return monitor;
    } catch (error) {
      helper.kill();
      if (!isOver) throw error;
      throw new AgentError("LAUNCH_FAILED", await complaintOf(join(request.instanceDir, PROCESS_LOG), "QEMU"), {
        cause: error,
      });
    }
  }

  /** What a boot took, for whoever wants it shorter. */
  #tellStart({ sandboxId }: LaunchRequest, helper: WaitingHelper, monitor: Monitor, diskMs: number): void {
    const { log } = this.#context;
    const { pid } = helper.identity;
    log.info({ sandbox: sandboxId, pid, disk_ms: Math.round(diskMs) }, "virtual machine started");
    void monitor.guestListens.then((atUnixMs) =>
      log.info({ sandbox: sandboxId, at_unix_ms: atUnixMs }, "guest agent listens"),
    );
  }

  /** As root every sandbox has a uid of its own; otherwise all run as the agent's user. */
  #isRoot(): boolean {
    return this.#context.host.uid === 0;
  }

  #resources(shortName: string): GroupResources | null {
    return this.#cgroups === null ? null : new GroupResources(groupPlaces(this.#cgroups, shortName));
  }

  #uid(request: LaunchRequest): number | null {
    if (!this.#isRoot()) return null;
    const { machine_uid: uid } = request.leases;
    if (uid === undefined) throw new AgentError("INTERNAL", "a virtual machine under root needs a uid");
    return uid;
  }

  #tool(volume: Volume, output: string, uid: number | null): DiskTool {
    return { guestAgent: this.#guestAgent, program: this.#host.qemuImg, uid, output, volumeDir: volume.path };
  }
}

/** Whether the kernel of this host moves the frames of virtual machines. */
const hasVhostNet = (): Promise<boolean> =>
  access(VHOST_NET_DEVICE).then(
    () => true,
    () => false,
  );

const range = (length: number): number[] => Array.from({ length }, (_, index) => index);

/** The vsock id of a machine that is reached by vsock, or null. */
function cidOf({ spec, leases }: LaunchRequest): number | null {
  if ((spec as QemuSpec).channel !== "vsock") return null;
  if (leases.cid === undefined) throw new AgentError("INTERNAL", "a machine that is reached by vsock needs an id");
  return leases.cid;
}

function readPaths({ kernel, initrd, network }: QemuSpec): string[] {
  const own = [kernel, initrd].filter((path): path is string => path !== null);
  return [...PROGRAM_PATHS, "/proc", ...own, ...(network.mode === "user" ? ["/etc/resolv.conf", "/etc/hosts"] : [])];
}
