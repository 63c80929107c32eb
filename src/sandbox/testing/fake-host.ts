// A host in memory for tests of the core: volumes, control groups and processes that outlive a core, with a backend and
// a storage on them. Faults are switched on by name.
import { AgentError } from "../../errors/agent-error.ts";
import type {
  Backend,
  HostResources,
  Instance,
  InstanceEnd,
  LaunchRequest,
  ResourceLimits,
  Snapshots,
} from "../../contracts/backend.ts";
import type { JsonObject } from "../../contracts/json.ts";
import type { PortConnection } from "../../contracts/ports.ts";
import type { Release } from "../../contracts/resource.ts";
import type { Overshoot, Storage, Volume, VolumeRequest } from "../../contracts/storage.ts";
import type { FakeExecutions } from "./fake-executions.ts";
import { FakeChannel, type Files } from "./fake-guest.ts";
import { FAKE_WISH, FakeNetworks } from "./fake-network.ts";

export interface FakeProcess {
  readonly pid: number;
  readonly uid: number;
  readonly volume: string;
  readonly files: Files;
  readonly channel: FakeChannel;
  readonly ended: PromiseWithResolvers<InstanceEnd>;
  paused: boolean;
}

export type Fault =
  | "plan"
  | "launch"
  | "channel"
  | "stop"
  | "pause"
  | "resume"
  | "clone"
  | "make-volume"
  | "volume"
  | "group"
  | "process"
  | "adopt"
  | "save"
  | "restore"
  | "remove-snapshot";

const BOOT_ID = (await Bun.file("/proc/sys/kernel/random/boot_id").text()).trim();

export class FakeHost {
  readonly volumes = new Map<string, Files>();
  readonly groups = new Set<string>();
  readonly networks = new FakeNetworks();
  /** Whether its sandboxes are made with a network. */
  connects = false;
  /** What the last launch was given. */
  launchedWith: LaunchRequest["network"] = null;
  readonly processes = new Map<string, FakeProcess>();
  readonly faults = new Set<Fault>();
  /** What ended instances left to say, by short name. */
  readonly lastWords = new Map<string, string>();
  /** Uids that something still uses. */
  readonly dirtyUids = new Set<number>();
  bootId = BOOT_ID;
  launches = 0;
  /** How snapshots are restored, or null for a backend without any, which runs dry on a copy. */
  restores: Snapshots["restores"] | null = null;
  /** Whether the sandboxes have a console, with a log in their directory. */
  hasConsole = false;
  /** Whether it is one that somebody can connect to. */
  hasSerial = true;
  /** Whether what its sandboxes use of it can be told and bounded. */
  hasResources = false;
  readonly limits: ResourceLimits[] = [];
  /** What was typed at consoles, in order. */
  readonly typed: string[] = [];
  #connected = false;
  /** By volume, then tag. */
  readonly snapshots = new Map<string, Map<string, Files>>();
  /** What a restore does to the executions of the guest, which a test plays. */
  rewind: (executions: FakeExecutions) => void = () => undefined;
  /** Who wants to know of volumes beyond their bound. */
  readonly overshootListeners = new Set<(found: Overshoot) => void>();
  /** Awaited in every launch, so that a test can hold one. */
  launchGate: Promise<void> = Promise.resolve();
  /** Awaited before a guest agent answers. */
  answerGate: Promise<void> = Promise.resolve();
  /** Awaited in every pause. */
  pauseGate: Promise<void> = Promise.resolve();
  /** Awaited before the end of an instance is told, so that news can come late. */
  endGate: Promise<void> = Promise.resolve();
  /** Stops and releases, in order. */
  readonly trace: string[] = [];
  #nextPid = 1000;
  #agents = 0;

  kill(shortName: string, reason: string): void {
    const process = this.processes.get(shortName);
    if (process === undefined) return;
    this.processes.delete(shortName);
    process.channel.gone = true;
    void this.endGate.then(() => process.ended.resolve({ reason, atUnixMs: Date.now() }));
  }

  /** Tells that a volume holds `bytes`, as often as storage may. */
  reportOvershoot(name: string, bytes: number | null): void {
    const volume = { name, path: `/${name}`, capBytes: 1 << 20, hardCap: false };
    for (const listener of [...this.overshootListeners]) listener({ volume, bytes });
  }

  spawn(shortName: string, uid: number, volume: Volume): FakeProcess {
    const files = this.volumes.get(volume.name);
    if (files === undefined) throw new Error(`no volume ${volume.name}`);
    this.#nextPid += 1;
    this.launches += 1;
    const process: FakeProcess = {
      pid: this.#nextPid,
      uid,
      volume: volume.name,
      files,
      channel: new FakeChannel(files, () => this.kill(shortName, "the command ended the sandbox")),
      ended: Promise.withResolvers(),
      paused: false,
    };
    this.processes.set(shortName, process);
    return process;
  }

  /** The backend of one agent; the guests answer only the newest. */
  backend(): Backend {
    const agent = ++this.#agents;
    const instance = (shortName: string, process: FakeProcess): Instance => ({
      identity: { pid: process.pid, startTicks: process.pid, bootId: this.bootId },
      visiblePid: null,
      enforcement: { filesystem: "fake" },
      channel: async () => {
        await this.answerGate;
        if (this.faults.has("channel")) throw new AgentError("GUEST_UNREACHABLE");
        if (process.channel.gone) throw new AgentError("SANDBOX_GONE");
        if (agent !== this.#agents) throw new AgentError("GUEST_UNREACHABLE");
        return process.channel;
      },
      ended: process.ended.promise,
      stop: async () => {
        this.trace.push("stop");
        if (this.faults.has("stop")) throw new Error("stop failed");
        this.kill(shortName, "stopped");
      },
      detach: async () => undefined,
      ...(this.hasConsole && this.hasSerial && { console: { attach: () => this.#attach() } }),
    });
    const find = (shortName: string): FakeProcess => {
      const process = this.processes.get(shortName);
      if (process === undefined) throw new AgentError("SANDBOX_GONE");
      return process;
    };
    const byInstance = (wanted: Instance): FakeProcess =>
      find([...this.processes].find(([, { pid }]) => pid === wanted.identity.pid)?.[0] ?? "");
    return {
      releases: {
        "fake-group": this.#release("group", (name) => this.groups.delete(name)),
        "fake-process": this.#release("process", (name) => this.kill(name, "released")),
      },
      plan: async (request) => this.#plan(request),
      launch: async (request) => instance(request.shortName, await this.#launch(request)),
      adopt: async (request) => {
        if (this.faults.has("adopt")) throw new Error("adopt failed");
        const process = this.processes.get(request.shortName);
        if (process === undefined || process.pid !== request.identity.pid) return null;
        return instance(request.shortName, process);
      },
      endOf: async (request) => {
        const reason = this.lastWords.get(request.shortName);
        return reason === undefined ? null : { reason, atUnixMs: 0 };
      },
      pause: {
        pause: async (wanted) => {
          if (this.faults.has("pause")) throw new AgentError("PLUGIN_FAULT");
          await this.pauseGate;
          byInstance(wanted).paused = true;
          byInstance(wanted).channel.executions.freeze();
        },
        resume: async (wanted) => {
          if (this.faults.has("resume")) throw new AgentError("PLUGIN_FAULT");
          byInstance(wanted).paused = false;
          byInstance(wanted).channel.executions.thaw();
        },
      },
      ...(this.hasResources && { resources: this.#resources() }),
      ...(this.hasConsole && { consoleLog: (dir: string) => `${dir}/console.log` }),
      ...(this.restores === null ? { dryRun: "workspace-copy" } : { dryRun: "snapshot", snapshots: this.#facet() }),
      uidIsClean: async (uid) =>
        !this.dirtyUids.has(uid) && ![...this.processes.values()].some((process) => process.uid === uid),
    };
  }

  storage(root: string): Storage {
    const volume = ({ name, capBytes }: { name: string; capBytes: number }): Volume => ({
      name,
      path: `${root}/${name}`,
      capBytes,
      hardCap: true,
    });
    const make = async (request: VolumeRequest, files: () => Files, fault: Fault): Promise<Volume> => {
      if (this.faults.has(fault)) throw new AgentError("HOST_FULL");
      this.volumes.set(request.name, files());
      return volume(request);
    };
    return {
      releases: { "fake-volume": this.#release("volume", (name) => this.volumes.delete(name)) },
      createVolume: (request, resources) =>
        resources.acquire({ kind: "fake-volume", name: request.name, data: {} }, () =>
          make(request, () => new Map(), "make-volume"),
        ),
      cloneVolume: (source, request, resources) =>
        resources.acquire({ kind: "fake-volume", name: request.name, data: {} }, () =>
          make(request, () => new Map(this.volumes.get(source.name)), "clone"),
        ),
      openVolume: async (name) => (this.volumes.has(name) ? volume({ name, capBytes: 1 << 20 }) : null),
      usage: async ({ name }) => ({
        bytes: [...(this.volumes.get(name)?.values() ?? [])].reduce((sum, { content }) => sum + content.length, 0),
      }),
      watchOvershoot: (listener) => {
        this.overshootListeners.add(listener);
        return () => this.overshootListeners.delete(listener);
      },
      close: async () => undefined,
    };
  }

  async #plan(request: JsonObject) {
    if (this.faults.has("plan")) throw new AgentError("CONFINEMENT_UNAVAILABLE");
    return {
      spec: { timeout_seconds: 5, max_timeout_seconds: 20 },
      leases: this.connects ? (["uid", "address"] as const) : (["uid"] as const),
      ...(this.connects && { network: FAKE_WISH }),
      vcpus: 1,
      memoryMib: typeof request.memory_mib === "number" ? request.memory_mib : 512,
      volumeCapBytes: 1 << 20,
      isolation: "fake",
      notes: [],
    };
  }

  async #launch(request: LaunchRequest): Promise<FakeProcess> {
    const { shortName, resources, leases, volume } = request;
    this.launchedWith = request.network;
    await resources.acquire({ kind: "fake-group", name: shortName, data: {} }, async () => {
      this.groups.add(shortName);
    });
    await this.launchGate;
    if (this.faults.has("launch")) throw new Error("the launcher said no");
    if (request.restore !== undefined) this.#restore(volume, request.restore);
    const process = await resources.acquire({ kind: "fake-process", name: shortName, data: {} }, async () =>
      this.spawn(shortName, leases.uid ?? 0, volume),
    );
    await resources.update("fake-process", shortName, { pid: process.pid });
    if (request.restore !== undefined) this.#rewind(process);
    return process;
  }

  #facet(): Snapshots {
    const of = ({ name }: Volume) => this.snapshots.get(name) ?? new Map<string, Files>();
    const info = (tag: string) => ({ tag, takenAtUnixMs: 0, bytes: 1 });
    return {
      restores: this.restores ?? "relaunch",
      save: async (_, volume, tag) => {
        if (of(volume).has(tag)) throw new AgentError("SNAPSHOT_EXISTS");
        this.snapshots.set(volume.name, of(volume).set(tag, new Map(this.volumes.get(volume.name))));
        if (this.faults.has("save")) throw new AgentError("MONITOR_ERROR");
        return info(tag);
      },
      list: async (instance, volume) => {
        const isThere = [...this.processes.values()].some(({ pid }) => pid === instance?.identity.pid);
        if (instance !== null && !isThere) throw new AgentError("GUEST_UNREACHABLE");
        return [...of(volume).keys()].map(info);
      },
      remove: async (_, volume, tag) => {
        if (this.faults.has("remove-snapshot")) throw new AgentError("MONITOR_ERROR");
        if (!of(volume).delete(tag)) throw new AgentError("SNAPSHOT_NOT_FOUND");
      },
      restore: async (_, volume, tag) => {
        this.#restore(volume, tag);
        for (const process of this.processes.values()) {
          if (process.volume !== volume.name) continue;
          process.paused = false;
          process.channel.executions.thaw();
          this.#rewind(process);
        }
      },
    };
  }

  #resources(): HostResources {
    const unknown = { memoryMaxBytes: null, pids: 1, pidsMax: null, ioReadBytes: null, ioWriteBytes: null };
    return {
      limit: async (_, limits) => void this.limits.push(limits),
      use: async () => ({ cpuUsageUs: 7, memoryBytes: 4096, ...unknown }),
      pressure: async () => Promise.reject(new AgentError("CAPABILITY_MISSING")),
      cpuset: async () => ({ cpus: "0-1", mems: "0" }),
      memory: async () => ({ rssKib: 4, pssKib: 3, privateKib: 2, sharedKib: 2, swapKib: 0 }),
    };
  }

  async #attach(): Promise<PortConnection> {
    if (this.#connected) throw new AgentError("SANDBOX_BUSY");
    this.#connected = true;
    return {
      read: async () => null,
      write: async (data) => void this.typed.push(Buffer.from(data).toString()),
      end: async () => undefined,
      close: () => {
        this.#connected = false;
      },
    };
  }

  #rewind({ channel: { executions } }: FakeProcess): void {
    this.rewind(executions);
    executions.cutAll();
  }

  #restore({ name }: Volume, tag: string): void {
    if (this.faults.has("restore")) throw new AgentError("MONITOR_ERROR", "the snapshot cannot be read");
    const kept = this.snapshots.get(name)?.get(tag);
    const files = this.volumes.get(name);
    if (kept === undefined || files === undefined) throw new AgentError("SNAPSHOT_NOT_FOUND");
    files.clear();
    for (const [path, file] of kept) files.set(path, file);
  }

  #release(fault: Fault, give: (name: string) => void): Release {
    return async ({ kind, name }) => {
      this.trace.push(`release ${kind}`);
      if (this.faults.has(fault)) throw new Error(`${fault} is stuck`);
      give(name);
    };
  }
}
