// Options of the flux-vm backend: `[plugins.backend.flux-vm]` of the configuration, with its defaults.
import { z } from "zod";
import { networkOptions } from "../host/network-request.ts";

export const ISOLATIONS = ["process", "thread"] as const;
export type Isolation = (typeof ISOLATIONS)[number];

export const options = z.object({
  /** Where the engine runs: in a jailed process for each machine, or in the agent itself. */
  isolation: z.enum(ISOLATIONS).default("process"),
  /** Of machines that name none. */
  fluxvm_engine: z.enum(["kvm", "firecracker"]).default("kvm"),
  /** The engine has no more. */
  max_vcpus: z.int().min(1).max(32).default(32),
  max_memory_mib: z.int().min(64).default(1_048_576),
  default_memory_mib: z.int().min(64).default(512),
  /** Bound on a sandbox's own disk. */
  max_disk_gib: z.int().min(1).default(64),
  ...networkOptions,
});

export type FluxVmOptions = z.infer<typeof options>;
