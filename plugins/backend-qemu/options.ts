// Options of the QEMU backend: `[plugins.backend.qemu]` of the configuration, with its defaults.
import { z } from "zod";
import { networkOptions } from "../host/network-request.ts";

export const options = z.object({
  /** Programs, by absolute path or by name in the search path of the agent. */
  qemu_binary: z.string().min(1).default("qemu-system-x86_64"),
  qemu_img_binary: z.string().min(1).default("qemu-img"),
  /** By its usual name it is also looked for where distributions put it. */
  virtiofsd_binary: z.string().min(1).default("virtiofsd"),
  /** `auto`: KVM where it runs a guest at speed, else QEMU's own emulation, which the record tells. */
  accel: z.enum(["auto", "kvm", "tcg"]).default("auto"),
  /** `auto`: microvm where the sandbox brings its kernel and KVM runs it, else q35. */
  machine: z.enum(["auto", "microvm", "q35"]).default("auto"),
  /** `auto`: the guest agent is reached by vsock where the host has it, else over a serial port. */
  channel: z.enum(["auto", "vsock", "serial"]).default("auto"),
  max_vcpus: z.int().min(1).max(255).default(64),
  max_memory_mib: z.int().min(64).default(1_048_576),
  default_memory_mib: z.int().min(64).default(512),
  /** Bound on a sandbox's own disk. */
  max_disk_gib: z.int().min(1).default(64),
  ...networkOptions,
});

export type QemuOptions = z.infer<typeof options>;
