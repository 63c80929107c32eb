// What a process sandbox may reach, as the configuration that its launcher reads. Nothing here is secret: the token
// travels on a descriptor of its own.
import { existsSync } from "node:fs";
import type { ProcboxOptions } from "./options.ts";
import type { ProcboxSpec } from "./request.ts";

/** Readable and executable in every process sandbox, where the host has them. Never all of `/etc`. */
export const READ_PATHS = [
  "/usr",
  "/lib",
  "/lib32",
  "/lib64",
  "/libx32",
  "/bin",
  "/sbin",
  "/etc/ld.so.cache",
  "/etc/ld.so.conf",
  "/etc/ld.so.conf.d",
  "/etc/alternatives",
  "/etc/localtime",
  "/etc/passwd",
  "/etc/group",
  "/etc/nsswitch.conf",
  "/etc/hosts",
  "/etc/resolv.conf",
  "/etc/ssl/certs",
  "/etc/ca-certificates",
  "/etc/mime.types",
  "/dev/urandom",
  "/dev/random",
  "/dev/zero",
] as const;

export const WRITE_PATHS = ["/dev/null"] as const;

/** Where the workspace is seen inside a sandbox that has its own mount namespace. */
export const WORKSPACE_INSIDE = "/workspace";

const OPEN_FILES_MAX = 1024;
/** Without a hard cap on the volume one file may still not grow past the cap. */
const MIB = 1024 * 1024;

/** Control-group leaves of one sandbox; see `cgroup.ts`. */
export interface CgroupLeaves {
  readonly init_procs: string[];
  readonly work_v2: string | null;
  readonly work_v1: string[];
}

/** Launch configuration as `fluxvm-guest-agent procbox` reads it on standard input. */
export interface LaunchConfig {
  readonly id: string;
  readonly socket: string;
  readonly peer_uid: number;
  readonly workspace: string;
  readonly mount_at: string;
  readonly isolation: ProcboxOptions["isolation"];
  readonly best_effort: boolean;
  readonly max_abi: number | null;
  readonly sandbox_uid: number | null;
  readonly supervisor_uid: number | null;
  readonly read_paths: readonly string[];
  readonly write_paths: readonly string[];
  readonly net_ports: readonly number[];
  readonly network: LaunchNetwork | null;
  readonly limits: {
    readonly memory_mib: number;
    /** Bound the address space: only where no control group bounds memory. */
    readonly address_space: boolean;
    readonly max_processes: number;
    readonly cpu_seconds: number | null;
    readonly file_size_max_bytes: number | null;
    readonly open_files: number;
  };
  readonly cgroup: CgroupLeaves | null;
  readonly exit_record: string;
}

/** A network that was made for the sandbox: the file that its namespace is pinned to, and who resolves names in it. */
export interface LaunchNetwork {
  readonly namespace: string;
  readonly resolver: string;
}

export interface LaunchFacts {
  readonly sandboxId: string;
  readonly socket: string;
  readonly workspace: string;
  readonly hardCap: boolean;
  readonly agentUid: number;
  /** Null when the agent is not root: the sandbox then runs as the agent's own user in a user namespace. */
  readonly sandboxUid: number | null;
  readonly cgroup: CgroupLeaves | null;
  readonly network: LaunchNetwork | null;
  readonly exitRecord: string;
}

export function launchConfig(spec: ProcboxSpec, options: ProcboxOptions, facts: LaunchFacts): LaunchConfig {
  return {
    id: facts.sandboxId,
    socket: facts.socket,
    peer_uid: facts.agentUid,
    workspace: facts.workspace,
    mount_at: WORKSPACE_INSIDE,
    isolation: options.isolation,
    best_effort: options.best_effort,
    max_abi: null,
    sandbox_uid: facts.sandboxUid,
    supervisor_uid: facts.sandboxUid === null ? null : supervisorUid(facts.sandboxUid, options),
    read_paths: READ_PATHS.filter((path) => existsSync(path)),
    write_paths: WRITE_PATHS,
    net_ports: spec.net_ports,
    network: facts.network,
    limits: {
      memory_mib: spec.memory_mib,
      address_space: facts.cgroup === null,
      max_processes: spec.max_processes,
      cpu_seconds: spec.cpu_seconds,
      file_size_max_bytes: facts.hardCap ? null : options.max_workspace_mib * MIB,
      open_files: OPEN_FILES_MAX,
    },
    cgroup: facts.cgroup,
    exit_record: facts.exitRecord,
  };
}

/** Each sandbox's supervisor has a uid of its own, in the range right above that of the sandboxes. */
export function supervisorUid(sandboxUid: number, options: ProcboxOptions): number {
  return sandboxUid + options.uid_count;
}
