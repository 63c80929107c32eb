// What a sandbox on QEMU is made of: the fields of the wire's VM specification that this backend serves, checked, with
// defaults. What it cannot do is refused by name, so that nobody believes to have it.
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { QemuHost } from "./capabilities.ts";
import { type ChannelKind, channelOf } from "./channel.ts";
import { cloudInit, type Seed, seedOf } from "../host/cloud-init.ts";
import {
  absolutePath,
  assertNotAsked,
  atMost,
  type DiskLimits,
  diskLimitFields,
  formatOf,
  kernelArguments,
  machineFields,
  parsed,
} from "../host/machine-request.ts";
import { type MachineNetwork, machineNetwork, networkField } from "../host/network-request.ts";
import { assertNoNetworkLimits } from "./disk-limits.ts";
import type { QemuOptions } from "./options.ts";
import { type SharedFolder, sharedFolders } from "./shared-folders.ts";

const GIB = 1024 ** 3;
/** What QEMU itself takes beside the guest's memory. */
export const OVERHEAD_MIB = 512;

/** Unknown fields pass, as everywhere on the wire; those in `REFUSED` do not. */
const requestSchema = z.looseObject({
  ...machineFields,
  kernel: absolutePath.nullish(),
  network: networkField.nullish(),
  machine: z.enum(["microvm", "q35"]).nullish(),
  channel: z.enum(["vsock", "serial"]).nullish(),
  shared_folders: sharedFolders.nullish(),
  cloud_init: cloudInit.nullish(),
  ...diskLimitFields,
});

/** Fields of the wire's specification that need what this backend does not have. */
const REFUSED = [
  "firmware",
  "max_vcpus",
  "max_memory_mib",
  "qga",
  "hyperv",
  "numa_node",
  "cpuset",
  "hugepages",
  "secure_boot",
  "tpm",
  "cpu_template",
  "extra_args",
  "data_disks",
  "cdroms",
  "vfio_devices",
  "shared_memory",
  "loadvm_tag",
] as const;

/** Goes into the record and into every launch. Sizes in MiB and bytes. */
export interface QemuSpec extends JsonObject, DiskLimits {
  readonly image: string;
  readonly image_format: "raw" | "qcow2";
  readonly kernel: string | null;
  readonly initrd: string | null;
  readonly kernel_args: string;
  readonly vcpus: number;
  readonly memory_mib: number;
  /** Null: as large as the image. */
  readonly disk_bytes: number | null;
  readonly network: MachineNetwork;
  readonly machine: "microvm" | "q35";
  readonly accel: "kvm" | "tcg";
  /** How the guest agent is reached. The records of older machines do not say; they have a serial port. */
  readonly channel: ChannelKind;
  readonly shared_folders: SharedFolder[];
  /** Null: nothing for cloud-init. */
  readonly seed: Seed | null;
}

/** What a record has of a machine; those of older machines say less. */
export function specOf(recorded: JsonObject): QemuSpec {
  const since = { shared_folders: [], seed: null, blk_mbit_limit: null, blk_ops_limit: null };
  return { ...since, ...recorded } as JsonObject as QemuSpec;
}

/** What of this host decides what a request comes to. */
export type RequestHost = Pick<QemuHost, "accel" | "withoutVsock">;

/** Rejects with `BAD_REQUEST` naming the field, or `NOT_SUPPORTED` naming what this backend has not. */
export function parseRequest(request: JsonObject, options: QemuOptions, host: RequestHost): QemuSpec {
  assertNotAsked(request, REFUSED, "QEMU");
  assertNoNetworkLimits(request);
  const wish = parsed(requestSchema, request, "qemu");
  const vcpus = wish.vcpus ?? 1;
  const memoryMib = wish.memory_mib ?? options.default_memory_mib;
  atMost("vcpus", vcpus, options.max_vcpus);
  atMost("memory_mib", memoryMib, options.max_memory_mib);
  atMost("disk_size_gib", wish.disk_size_gib ?? 0, options.max_disk_gib);
  return {
    image: wish.image,
    image_format: formatOf(wish.image, wish.image_format),
    kernel: wish.kernel ?? null,
    initrd: wish.initrd ?? null,
    kernel_args: argumentsOf(wish.kernel_args ?? "", wish.kernel ?? null),
    vcpus,
    memory_mib: memoryMib,
    disk_bytes: wish.disk_size_gib == null ? null : wish.disk_size_gib * GIB,
    network: machineNetwork(wish.network, ["none", "user", "tap", "macvtap"], options),
    machine: machineOf(wish.machine ?? null, wish.kernel ?? null, options, host.accel),
    accel: host.accel,
    channel: channelOf(wish.channel ?? null, options, host.withoutVsock),
    shared_folders: wish.shared_folders ?? [],
    seed: wish.cloud_init == null ? null : seedOf(wish.cloud_init),
    blk_mbit_limit: wish.blk_mbit_limit ?? null,
    blk_ops_limit: wish.blk_ops_limit ?? null,
  };
}

function argumentsOf(text: string, kernel: string | null): string {
  if (text !== "" && kernel === null) throw new AgentError("BAD_REQUEST", "kernel_args needs a kernel");
  return kernelArguments(text);
}

/** The small machine where it can boot the sandbox, unless the request or the operator says otherwise. */
function machineOf(
  wish: "microvm" | "q35" | null,
  kernel: string | null,
  options: QemuOptions,
  accel: "kvm" | "tcg",
): QemuSpec["machine"] {
  const wanted = wish ?? (options.machine === "auto" ? null : options.machine);
  if (wanted === null) return kernel !== null && accel === "kvm" ? "microvm" : "q35";
  if (wanted === "microvm" && kernel === null) {
    throw new AgentError("BAD_REQUEST", "the machine microvm boots a kernel only: name one, or use q35");
  }
  return wanted;
}
