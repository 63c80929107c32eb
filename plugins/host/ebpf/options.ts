// What an operator can set for dataplanes of programs in the kernel.
import { z } from "zod";

export const ebpfOptions = z.strictObject({
  /** Directory for pins; on a BPF file system, or one is mounted there. */
  pin_root: z.string().startsWith("/").max(4096).default("/sys/fs/bpf/fluxvm"),
  /** Null: the built-in object. */
  bpf_object: z.string().startsWith("/").max(4096).nullable().default(null),
});

export type EbpfOptions = z.output<typeof ebpfOptions>;
