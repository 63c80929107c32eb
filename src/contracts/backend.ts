// Backends: what runs a sandbox. Words: *plan* checks a request against the host and acquires nothing; *launch* makes
// a running instance; *adopt* finds an instance that survived an agent restart; *stop* ends its processes. What an
// instance holds on the host is journalled through `ResourceScope` and given back by the backend's `releases`.
//
// One life: plan(spec) → core accepts (record, leases, journal) → launch → instance.channel() … → instance.stop() →
// core releases the rows, newest first. After an agent restart: adopt(row) → instance, or null → release the rows.
import type { GuestChannel } from "./channel.ts";
import type { JsonObject } from "./json.ts";
import type { NetworkWish, SandboxNetwork } from "./network.ts";
import type { PortConnection } from "./ports.ts";
import type { Release, ResourceScope } from "./resource.ts";
import type { Volume } from "./storage.ts";

/** Who a process is, across agent restarts: pid alone is reused by the kernel. */
export interface ProcessIdentity {
  readonly pid: number;
  /** Field 22 of `/proc/<pid>/stat`, in clock ticks since boot. */
  readonly startTicks: number;
  readonly bootId: string;
}

/** What `plan` answers. `spec` is the normalised request; it goes into the record and into `launch`. */
export interface SandboxPlan {
  readonly spec: JsonObject;
  /**
   * Host-wide leases that the core takes in the accept transaction. `uid` is a process sandbox's own user and
   * `machine_uid` that of what runs a virtual machine: two ranges, so that neither ever has the other's files.
   */
  readonly leases: readonly ("uid" | "machine_uid" | "address" | "cid")[];
  /** Absent: no network. With a namespace it goes with the lease `address`. */
  readonly network?: NetworkWish;
  readonly vcpus: number;
  readonly memoryMib: number;
  /** Bound on the writable volume in bytes. */
  readonly volumeCapBytes: number;
  /** How the record shows the sandbox's isolation. */
  readonly isolation: string;
  /** Things that are not enforced because the operator allowed best effort. */
  readonly notes: readonly string[];
  /** True where the sandbox runs in the agent itself: it ends with it, and `adopt` never finds it. */
  readonly endsWithAgent?: boolean;
}

export interface LaunchRequest {
  readonly sandboxId: string;
  /** `[a-z0-9]{12}`: for names with a length limit (control groups, sockets, interfaces). */
  readonly shortName: string;
  readonly spec: JsonObject;
  /** Values of the leases that the plan asked for, for example `{ uid: 200017 }`. */
  readonly leases: Readonly<Record<string, number>>;
  /** The instance's own directory for host-side files, 0711; outside the sandbox. */
  readonly instanceDir: string;
  /** Directory for sockets, made by the core, short enough for a socket path. */
  readonly socketDir: string;
  readonly volume: Volume;
  /** Up and under policy; null where the plan wanted none of the host's. */
  readonly network: SandboxNetwork | null;
  /** Authenticates the host at the guest agent. Goes to the guest by descriptor, never by argument or log. */
  readonly token: string;
  /** From the launch until the guest agent has to answer; whoever launches ends the instance then. */
  readonly readyTimeoutMs: number;
  readonly resources: ResourceScope;
  /** Goes on from this snapshot of the volume instead of starting afresh. Only where the backend has `snapshots`. */
  readonly restore?: string;
}

export interface AdoptRequest extends LaunchRequest {
  readonly identity: ProcessIdentity;
}

export interface InstanceEnd {
  readonly reason: string;
  readonly atUnixMs: number;
}

/** A running sandbox as its backend sees it. */
export interface Instance {
  /** The process that stands for the sandbox on the host; stored in the record. */
  readonly identity: ProcessIdentity;
  /** Shown as `pid` in the record; null where the reference shows null. */
  readonly visiblePid: number | null;
  /** What confines the sandbox, in the wire's words, or null where that has no meaning. */
  readonly enforcement: JsonObject | null;
  /** The warm channel to the guest agent; rejects with `SANDBOX_GONE` once the sandbox ended. */
  channel(): Promise<GuestChannel>;
  /** Resolves once, when the sandbox ends for whatever reason. */
  readonly ended: Promise<InstanceEnd>;
  /** Ends the sandbox within `budgetMs`: ask, then kill. Resolves when its processes are gone. */
  stop(budgetMs: number): Promise<void>;
  /** Lets go without stopping, so that another agent process can adopt. */
  detach(): Promise<void>;
  /** Facet: a serial console. */
  readonly console?: SerialConsole;
  /** Facet: processes that serve it folders of the host; shown as `virtiofsd_pids` in the record. */
  readonly folderServers?: readonly number[];
}

/** The serial console of a virtual machine. */
export interface SerialConsole {
  /** One at a time: another is `SANDBOX_BUSY`. What is written are keystrokes; what is read is what the guest writes from now on. */
  attach(): Promise<PortConnection>;
}

/** Memory and disk of a sandbox at one instant, under a name within the sandbox. Lies in its volume. */
export interface Snapshot {
  /** `[A-Za-z0-9._-]{1,128}`. */
  readonly tag: string;
  readonly takenAtUnixMs: number;
  /** What it takes beside the disk: mostly the memory. */
  readonly bytes: number;
}

/** Snapshots of a backend. `instance` is null while the sandbox does not run. */
export interface Snapshots {
  /** `in-place`: `restore` puts a running or frozen instance back. `relaunch`: only a launch with `restore` does. */
  readonly restores: "in-place" | "relaunch";
  /** The sandbox is as before afterwards, running or frozen. `SNAPSHOT_EXISTS` for a tag that is taken. */
  save(instance: Instance, volume: Volume, tag: string): Promise<Snapshot>;
  /** By time. */
  list(instance: Instance | null, volume: Volume): Promise<readonly Snapshot[]>;
  /** `SNAPSHOT_NOT_FOUND`. */
  remove(instance: Instance | null, volume: Volume, tag: string): Promise<void>;
  /** Only `in-place`. The instance is the same process afterwards, and runs. Never writes to the snapshot. */
  restore?(instance: Instance, volume: Volume, tag: string): Promise<void>;
}

/** What a sandbox may use of the host; absent = as it is. Bytes and counts are of the guest and what runs it together. */
export interface ResourceLimits {
  /** Of one processor: 150 is one and a half. */
  readonly cpuQuotaPercent?: number;
  readonly memoryMaxBytes?: number;
  /** 1 to 10000, beside other sandboxes; 100 is usual. */
  readonly ioWeight?: number;
  readonly pidsMax?: number;
  /** Processors of the host as the kernel lists them: `0-3,6`. */
  readonly cpusetCpus?: string;
  /** Of reading and writing its own disk together: megabits, and operations, a second. 0 is no bound. */
  readonly diskMbit?: number;
  readonly diskOps?: number;
}

/** What a sandbox uses at this moment, or used since it was launched. Null: the host does not count it. */
export interface ResourceUse {
  readonly cpuUsageUs: number | null;
  readonly memoryBytes: number | null;
  /** Null also when there is no bound; of `pidsMax` likewise. */
  readonly memoryMaxBytes: number | null;
  readonly pids: number | null;
  readonly pidsMax: number | null;
  readonly ioReadBytes: number | null;
  readonly ioWriteBytes: number | null;
}

/** How much of the time some, or all, of a sandbox waited for a resource. */
export interface PressureShares {
  readonly avg10: number;
  readonly avg60: number;
  readonly avg300: number;
  readonly totalUs: number;
}

export interface Pressure {
  readonly some: PressureShares;
  /** Null where the host does not tell. */
  readonly full: PressureShares | null;
}

/** Memory of the host that a sandbox's process holds, in KiB. */
export interface MemoryUse {
  readonly rssKib: number;
  readonly pssKib: number;
  readonly privateKib: number;
  readonly sharedKib: number;
  readonly swapKib: number;
}

/** The host's side of a running sandbox. What this host cannot do or tell is `CAPABILITY_MISSING`, and names it. */
export interface HostResources {
  /** Holds until the instance ends. Nothing is changed when one of the limits cannot be set. */
  limit(instance: Instance, limits: ResourceLimits): Promise<void>;
  use(instance: Instance): Promise<ResourceUse>;
  pressure(instance: Instance): Promise<Readonly<Record<"cpu" | "memory" | "io", Pressure>>>;
  /** Processors and memory nodes that the sandbox may run on. */
  cpuset(instance: Instance): Promise<{ readonly cpus: string; readonly mems: string }>;
  memory(instance: Instance): Promise<MemoryUse>;
}

export interface Backend {
  /** Release functions by resource kind, for every kind that this backend journals. */
  readonly releases: Readonly<Record<string, Release>>;
  /** Rejects with an `AgentError` (400, 403, 501, 503) before anything is acquired. `request` is untrusted. */
  plan(request: JsonObject): Promise<SandboxPlan>;
  launch(request: LaunchRequest): Promise<Instance>;
  /** Facet: the instance survives the agent. Null: it is gone. */
  readonly adopt?: (request: AdoptRequest) => Promise<Instance | null>;
  /** Facet: how an instance ended that `adopt` did not find, when it left word of it. */
  readonly endOf?: (request: AdoptRequest) => Promise<InstanceEnd | null>;
  /** Facet: memory and disk under a name. */
  readonly snapshots?: Snapshots;
  /**
   * Facet: where in the instance's directory the console's log lies, oldest first; at its bound it is moved to `<path>.1`
   * and begun again. The sandbox's own user may write it. It stays while the sandbox is stopped.
   */
  readonly consoleLog?: (instanceDir: string) => string;
  /** Facet: what its sandboxes use of the host can be told and bounded. */
  readonly resources?: HostResources;
  /** Facet: freezes and thaws in place. */
  readonly pause?: { pause(instance: Instance): Promise<void>; resume(instance: Instance): Promise<void> };
  /**
   * Facet: how a dry-run is undone. `workspace-copy`: the core clones the volume, launches a second instance on the
   * clone with the same leases, and throws it away. `snapshot`: the core saves a snapshot, runs the command in the
   * sandbox itself and restores; needs `snapshots`.
   */
  readonly dryRun?: "workspace-copy" | "snapshot";
  /** True when this uid is free of processes, control groups and System V IPC and may be leased again. */
  readonly uidIsClean?: (uid: number) => Promise<boolean>;
  /** True when no machine of the host has this vsock id any more. */
  readonly cidIsFree?: (cid: number) => Promise<boolean>;
}
