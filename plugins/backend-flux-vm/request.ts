// What a sandbox on the engine is made of: the fields of the wire's VM specification that this backend serves, checked, with
// defaults. What it cannot do is refused by name, so that nobody believes to have it.
import { z } from "zod";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
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
import { type FluxVmOptions, type Isolation, ISOLATIONS } from "./options.ts";

const GIB = 1024 ** 3;
const MBIT_MAX = 8_000_000;
const PACKETS_MAX = 100_000_000;
/** What the engine itself takes beside the guest's memory, with the page tables of the host for it. */
export const OVERHEAD_MIB = 128;

/** Unknown fields pass, as everywhere on the wire; those in `REFUSED` do not. */
const requestSchema = z.looseObject({
  ...machineFields,
  kernel: absolutePath,
  max_vcpus: z.int().min(1).nullish(),
  fluxvm_engine: z.string().max(64).nullish(),
  isolation: z.enum(ISOLATIONS).nullish(),
  channel: z.enum(["vsock"]).nullish(),
  network: networkField.nullish(),
  cloud_init: cloudInit.nullish(),
  ...diskLimitFields,
  net_mbit_limit: z.int().min(1).max(MBIT_MAX).nullish(),
  net_pps_limit: z.int().min(1).max(PACKETS_MAX).nullish(),
});
type Request = z.infer<typeof requestSchema>;

/** Fields of the wire's specification that need what this backend does not have. */
const REFUSED = [
  "firmware",
  "machine",
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
  "shared_folders",
  "data_disks",
  "cdroms",
  "vfio_devices",
  "shared_memory",
  "loadvm_tag",
] as const;

/** Goes into the record and into every launch. Sizes in MiB and bytes. */
export interface FluxVmSpec extends JsonObject, DiskLimits {
  readonly fluxvm_engine: "kvm";
  readonly isolation: Isolation;
  readonly image: string;
  readonly image_format: "raw" | "qcow2";
  readonly kernel: string;
  readonly initrd: string | null;
  readonly kernel_args: string;
  readonly vcpus: number;
  /** As many as the guest may bring online later. */
  readonly max_vcpus: number;
  readonly memory_mib: number;
  /** Null: as large as the image. */
  readonly disk_bytes: number | null;
  readonly network: MachineNetwork;
  readonly net_mbit_limit: number | null;
  readonly net_pps_limit: number | null;
  /** Null: nothing for cloud-init. */
  readonly seed: Seed | null;
}

/** What a record has of a machine. */
export const specOf = (recorded: JsonObject): FluxVmSpec => recorded as FluxVmSpec;

/** Rejects with `BAD_REQUEST` naming the field, or `NOT_SUPPORTED` naming what this backend has not. */
export function parseRequest(request: JsonObject, options: FluxVmOptions): FluxVmSpec {
  assertNotAsked(request, REFUSED, "flux-vm");
  const wish = parsed(requestSchema, request, "flux-vm");
  assertEngine(wish.fluxvm_engine ?? options.fluxvm_engine);
  const vcpus = wish.vcpus ?? 1;
  const maxVcpus = wish.max_vcpus ?? vcpus;
  const memoryMib = wish.memory_mib ?? options.default_memory_mib;
  atMost("vcpus", vcpus, options.max_vcpus);
  atMost("max_vcpus", maxVcpus, options.max_vcpus);
  if (maxVcpus < vcpus) throw new AgentError("BAD_REQUEST", "max_vcpus is at least vcpus");
  atMost("memory_mib", memoryMib, options.max_memory_mib);
  atMost("disk_size_gib", wish.disk_size_gib ?? 0, options.max_disk_gib);
  return {
    fluxvm_engine: "kvm",
    isolation: wish.isolation ?? options.isolation,
    image: wish.image,
    image_format: formatOf(wish.image, wish.image_format),
    kernel: wish.kernel,
    initrd: wish.initrd ?? null,
    kernel_args: kernelArguments(wish.kernel_args ?? ""),
    vcpus,
    max_vcpus: maxVcpus,
    memory_mib: memoryMib,
    disk_bytes: wish.disk_size_gib == null ? null : wish.disk_size_gib * GIB,
    ...networkOf(wish, options),
    blk_mbit_limit: wish.blk_mbit_limit ?? null,
    blk_ops_limit: wish.blk_ops_limit ?? null,
    seed: wish.cloud_init == null ? null : seedOf(wish.cloud_init),
  };
}

function assertEngine(name: string): void {
  if (name === "kvm") return;
  const message =
    name === "firecracker"
      ? "fluxvm_engine: this build has no engine firecracker; use kvm"
      : `fluxvm_engine: there is no engine ${JSON.stringify(name)}; use kvm`;
  if (name !== "firecracker") throw new AgentError("BAD_REQUEST", message);
  throw new AgentError("CAPABILITY_MISSING", message, { details: { capability: "firecracker" } });
}

function networkOf({ network: asked, ...limits }: Request, options: FluxVmOptions) {
  const network = machineNetwork(asked, ["none", "tap", "macvtap"], options);
  const [net_mbit_limit, net_pps_limit] = [limits.net_mbit_limit ?? null, limits.net_pps_limit ?? null];
  if (network.mode === "none" && (net_mbit_limit ?? net_pps_limit) !== null) {
    throw new AgentError("BAD_REQUEST", "net_mbit_limit and net_pps_limit need a network");
  }
  return { network, net_mbit_limit, net_pps_limit };
}
