// What the hypervisor is told of a machine: a file of paths and numbers that only the agent reads and writes. All paths are
// those of the host, and no secret is in it: that is on the config disk.
import { rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { JsonObject } from "../../src/contracts/json.ts";
import { LOG_MAX_BYTES } from "../host/serial-console.ts";
import type { FluxVmSpec } from "./request.ts";

/** Names of what a machine has in its directories. */
export const CONTROL_SOCKET = "control.sock";
export const VSOCK_SOCKET = "vsock.sock";
export const SERIAL_SOCKET = "serial.sock";
export const CONSOLE_LOG = "console.log";
export const PROCESS_LOG = "hypervisor.log";
/** What the machine's disk has beside its image. */
export const DISK_LAYER = "disk.layer";

/** A guest that resets shall reach the machine's reset at once. */
const RESET_ARGUMENT = "reboot=k";

export interface MachineFiles {
  readonly socketDir: string;
  readonly instanceDir: string;
  readonly volumeDir: string;
  readonly configDisk: string;
  /** What cloud-init reads, if there is anything. */
  readonly seedDisk: string | null;
  /** A file of the size of the guest's memory; null: the hypervisor makes one. */
  readonly memory: string | null;
  /** Open queues of its tap device, and the address of its network card; null where it has none. */
  readonly tap: { readonly queues: readonly number[]; readonly mac: string | null } | null;
  /** Who the machine runs as in its jail; null: there is none. */
  readonly uid: number | null;
  /** The snapshot from which it goes on. */
  readonly restore: string | null;
}

/** The configuration with which a hypervisor boots, as `fluxvm-hypervisor` reads it; what is not wished is left out. */
export function bootConfig(spec: FluxVmSpec, files: MachineFiles): JsonObject {
  const { socketDir, volumeDir, uid } = files;
  return {
    engine: spec.fluxvm_engine,
    kernel: spec.kernel,
    ...present({ initrd: spec.initrd, kernel_args: argumentsOf(spec.kernel_args) }),
    memory_mib: spec.memory_mib,
    vcpus: spec.vcpus,
    ...(spec.max_vcpus > spec.vcpus ? { max_vcpus: spec.max_vcpus } : {}),
    ...present({ ram: files.memory, restore: files.restore }),
    rootfs: spec.image,
    rootfs_format: spec.image_format,
    rootfs_layer: join(volumeDir, DISK_LAYER),
    ...present({ rootfs_bytes: spec.disk_bytes }),
    config_disk: files.configDisk,
    ...(files.seedDisk === null ? {} : { data_disks: [{ path: files.seedDisk, read_only: true }] }),
    console: join(files.instanceDir, CONSOLE_LOG),
    serial_uds: join(socketDir, SERIAL_SOCKET),
    vsock_uds: join(socketDir, VSOCK_SOCKET),
    ...(files.tap === null ? {} : { tap_descriptors: [...files.tap.queues], ...present({ mac: files.tap.mac }) }),
    ...present({ net_mbit_limit: spec.net_mbit_limit, net_pps_limit: spec.net_pps_limit }),
    ...present({ blk_mbit_limit: spec.blk_mbit_limit, blk_ops_limit: spec.blk_ops_limit }),
    ...(uid === null ? {} : { jail: jail(uid, files) }),
  };
}

function jail(uid: number, { socketDir, instanceDir, volumeDir }: MachineFiles): JsonObject {
  const log = join(instanceDir, PROCESS_LOG);
  return { uid, gid: uid, directory: volumeDir, sockets: socketDir, log, limits: { log_bytes: LOG_MAX_BYTES } };
}

/** Writes it anew, 0600. */
export async function writeBootConfig(path: string, config: JsonObject): Promise<void> {
  await rm(path, { force: true });
  await writeFile(path, JSON.stringify(config), { mode: 0o600, flag: "wx" });
}

/** Null: what the hypervisor has for a kernel that is told nothing. */
function argumentsOf(text: string): string | null {
  if (text === "") return null;
  return /(^| )reboot=/.test(text) ? text : `${text} ${RESET_ARGUMENT}`;
}

function present(fields: JsonObject): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null));
}
