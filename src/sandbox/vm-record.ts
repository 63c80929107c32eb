// The VM record as the wire shows it: every key of the reference, with nulls for what a sandbox of this kind has not,
// and the additive keys of the sandbox routes. Pure; the guest token is not even reachable from here.
import type { Json, JsonObject } from "../contracts/json.ts";
import { stateOf, statusOf } from "./lifecycle.ts";
import type { VmRecord } from "./operations.ts";
import { type ExitStatus, type SandboxRecord, ttlDeadlineUnixMs } from "./record.ts";

/** What the record cannot know by itself. */
export interface Observed {
  readonly runningCommands: number;
  /** Names of the variables that all its commands get. */
  readonly environmentNames: readonly string[];
  readonly storageBytes: number;
  readonly lastExit: ExitStatus | null;
  /** Host directory of the sandbox's files for people, `<state_dir>/instances/<id>`. */
  readonly workspace: string;
  /** Log of its console, where its backend keeps one. */
  readonly consoleLog: string | null;
  /** Processes that serve it folders of the host. */
  readonly folderServers: readonly number[];
}

const timestamp = (unixMs: number | null): string | null => (unixMs === null ? null : new Date(unixMs).toISOString());

const ABSENT_REQUEST_KEYS = [
  "max_vcpus",
  "max_memory_mib",
  "loadvm_tag",
  "disk_size_gib",
  "kernel",
  "initrd",
  "firmware",
  "kernel_args",
  "cloud_init",
  "agent",
  "qga",
  "hyperv",
  "numa_node",
  "cpuset",
  "hugepages",
  "secure_boot",
  "tpm",
  "net_mbit_limit",
  "net_pps_limit",
  "blk_mbit_limit",
  "blk_ops_limit",
  "cpu_template",
  "security_profile",
  "measurement_policy",
  "apple",
] as const;

const ABSENT_KEYS = [
  "disk",
  "seed_disk",
  "control_socket",
  "jail_path",
  "vsock_socket",
  "qga_socket",
  "cgroup_path",
  "lvm_lv",
  "nbd_pid",
  "swtpm_pid",
  "requested_security_profile",
  "achieved_security_profile",
  "security_evidence",
] as const;

const nulls = (keys: readonly string[]): JsonObject =>
  Object.fromEntries(keys.map((key): [string, Json] => [key, null]));

/** Backends of virtual machines, as the wire names them. */
const MACHINES: ReadonlySet<string> = new Set(["qemu", "cloud-hypervisor", "firecracker", "flux-vm", "vz"]);
/** The wire names every other sandbox `flux-vm`; which backend runs it is in `request.image`. */
const NOMINAL_BACKEND = "flux-vm";
/** What of a machine's specification its record shows. */
const MACHINE_KEYS = [
  "image",
  "kernel",
  "initrd",
  "kernel_args",
  "network",
  "machine",
  "channel",
  "shared_folders",
  "max_vcpus",
  "fluxvm_engine",
  "net_mbit_limit",
  "net_pps_limit",
  "blk_mbit_limit",
  "blk_ops_limit",
] as const;
const GUEST_AGENT_PORT = 17_777;

const backendOf = ({ backend }: SandboxRecord): string => (MACHINES.has(backend) ? backend : NOMINAL_BACKEND);

function specificationOf({ backend, spec }: SandboxRecord): JsonObject {
  if (!MACHINES.has(backend)) return {};
  const shown = MACHINE_KEYS.flatMap((key): [string, Json][] => (spec[key] === undefined ? [] : [[key, spec[key]]]));
  // The token of the guest agent is nobody's but the agent's.
  return { ...Object.fromEntries(shown), agent: { enabled: true, port: GUEST_AGENT_PORT } };
}

/** What connects it, as far as its host has a part in that. */
function networkOf({ network }: SandboxRecord): JsonObject {
  return {
    tap_name: network?.tap ?? null,
    netns: network?.namespace ?? null,
    guest_ip: network?.guestAddress ?? null,
    dhcp_leasefile: network?.leaseFile ?? null,
  };
}

function requestOf(record: SandboxRecord): JsonObject {
  return {
    ...nulls(ABSENT_REQUEST_KEYS),
    name: record.name,
    tenant: record.tenant,
    created_by_token: record.createdByToken,
    backend: backendOf(record),
    image: record.backend,
    vcpus: record.vcpus,
    memory_mib: record.memoryMib,
    network: { mode: record.networkWish?.mode ?? "none" },
    ttl_seconds: record.ttlSeconds,
    extra_args: [],
    shared_memory: false,
    storage: "default",
    shared_folders: [],
    data_disks: [],
    cdroms: [],
    vfio_devices: [],
    pod_uid: record.podUid,
    ...specificationOf(record),
  };
}

/** Renders a record. Times are RFC 3339 in UTC, `storage_bytes` is bytes, `ttl_seconds` is seconds. */
export function toVmRecord(record: SandboxRecord, observed: Observed): VmRecord {
  const state = stateOf(record.phase, observed.runningCommands, record.error !== null);
  const deadline = timestamp(ttlDeadlineUnixMs(record));
  return {
    ...nulls(ABSENT_KEYS),
    id: record.id,
    name: record.name,
    backend: backendOf(record),
    status: statusOf(state),
    pid: record.visiblePid,
    created_at: timestamp(record.createdAtUnixMs),
    expires_at: deadline,
    workspace: observed.workspace,
    error: record.error,
    log_path: observed.consoleLog,
    guest_cid: record.leases.cid ?? null,
    ...networkOf(record),
    request: requestOf(record),
    virtiofsd_pids: [...observed.folderServers],
    labels: { ...record.labels },
    state,
    ready_at: timestamp(record.readyAtUnixMs),
    last_exit_status: observed.lastExit === null ? null : { ...observed.lastExit },
    paused_at: timestamp(record.pausedAtUnixMs),
    storage_bytes: observed.storageBytes,
    ttl_deadline: deadline,
    idle_timeout_seconds: 0,
    on_idle: "kill",
    isolation: record.isolation,
    enforcement: record.enforcement,
    notes: [...record.notes],
    env_names: [...observed.environmentNames],
  };
}
