// What a sandbox on QEMU is made of: the fields of the wire's VM specification that this backend serves, checked, with
// defaults. What it cannot do is refused by name, so that nobody believes to have it.
import { isAbsolute } from "node:path";
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { QemuHost } from "./capabilities.ts";
import { type ChannelKind, channelOf } from "./channel.ts";
import { cloudInit, type Seed, seedOf } from "./cloud-init.ts";
import { assertNoNetworkLimits, type DiskLimits, diskLimitFields } from "./disk-limits.ts";
import type { QemuOptions } from "./options.ts";
import { type SharedFolder, sharedFolders } from "./shared-folders.ts";

const GIB = 1024 ** 3;
const MEMORY_MIB_MIN = 64;
/** What QEMU itself takes beside the guest's memory. */
export const OVERHEAD_MIB = 512;

const absolutePath = z
  .string()
  .max(4096)
  .refine((path) => isAbsolute(path) && !path.includes("\0") && !path.split("/").includes(".."), "an absolute path");
const port = z.int().min(1).max(65_535);

const forward = z.strictObject({ protocol: z.enum(["tcp", "udp"]).default("tcp"), host_port: port, guest_port: port });

const network = z.looseObject({
  mode: z.string().default("none"),
  forwards: z.array(forward).max(64).default([]),
});

/** Unknown fields pass, as everywhere on the wire; those in `REFUSED` do not. */
const requestSchema = z.looseObject({
  image: absolutePath,
  image_format: z.enum(["raw", "qcow2"]).optional(),
  kernel: absolutePath.nullish(),
  initrd: absolutePath.nullish(),
  kernel_args: z.string().max(2048).nullish(),
  vcpus: z.int().min(1).nullish(),
  memory_mib: z.int().min(MEMORY_MIB_MIN).nullish(),
  disk_size_gib: z.int().min(1).nullish(),
  network: network.nullish(),
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
  readonly network: {
    readonly mode: "none" | "user";
    readonly forwards: { protocol: "tcp" | "udp"; host_port: number; guest_port: number }[];
  };
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
  const refused = REFUSED.filter((name) => isAsked(request[name]));
  if (refused.length > 0) {
    throw new AgentError("NOT_SUPPORTED", `the QEMU backend does not serve ${refused.join(", ")}`, {
      details: { fields: [...refused] },
    });
  }
  assertNoNetworkLimits(request);
  const parsed = requestSchema.safeParse(request);
  if (!parsed.success) {
    const problems = parsed.error.issues.map((issue) => `${issue.path.join(".") || "request"}: ${issue.message}`);
    throw new AgentError("BAD_REQUEST", `qemu: ${problems.join("; ")}`);
  }
  const wish = parsed.data;
  const vcpus = wish.vcpus ?? 1;
  const memoryMib = wish.memory_mib ?? options.default_memory_mib;
  atMost("vcpus", vcpus, options.max_vcpus);
  atMost("memory_mib", memoryMib, options.max_memory_mib);
  atMost("disk_size_gib", wish.disk_size_gib ?? 0, options.max_disk_gib);
  return {
    image: wish.image,
    image_format: wish.image_format ?? (wish.image.endsWith(".qcow2") ? "qcow2" : "raw"),
    kernel: wish.kernel ?? null,
    initrd: wish.initrd ?? null,
    kernel_args: kernelArguments(wish.kernel_args ?? "", wish.kernel ?? null),
    vcpus,
    memory_mib: memoryMib,
    disk_bytes: wish.disk_size_gib == null ? null : wish.disk_size_gib * GIB,
    network: networkOf(wish.network ?? { mode: "none", forwards: [] }),
    machine: machineOf(wish.machine ?? null, wish.kernel ?? null, options, host.accel),
    accel: host.accel,
    channel: channelOf(wish.channel ?? null, options, host.withoutVsock),
    shared_folders: wish.shared_folders ?? [],
    seed: wish.cloud_init == null ? null : seedOf(wish.cloud_init),
    blk_mbit_limit: wish.blk_mbit_limit ?? null,
    blk_ops_limit: wish.blk_ops_limit ?? null,
  };
}

const isAsked = (value: unknown): boolean =>
  value !== undefined && value !== null && value !== false && !(Array.isArray(value) && value.length === 0);

function atMost(name: string, value: number, most: number): void {
  if (value > most) throw new AgentError("BAD_REQUEST", `${name} is at most ${most} on this host`);
}

function kernelArguments(text: string, kernel: string | null): string {
  if (text !== "" && kernel === null) throw new AgentError("BAD_REQUEST", "kernel_args needs a kernel");
  if (/[^\x20-\x7e]/.test(text)) throw new AgentError("BAD_REQUEST", "kernel_args is printable ASCII");
  return text;
}

function networkOf(wish: z.infer<typeof network>): QemuSpec["network"] {
  if (wish.mode === "none" || wish.mode === "user") {
    if (wish.mode === "none" && wish.forwards.length > 0) {
      throw new AgentError("BAD_REQUEST", "network.forwards needs a network");
    }
    return { mode: wish.mode, forwards: wish.forwards };
  }
  throw new AgentError(
    "CAPABILITY_MISSING",
    `the network mode ${JSON.stringify(wish.mode)} needs a dataplane, which this host has none of; use "user" or "none"`,
    {
      details: { capability: "dataplane" },
    },
  );
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
