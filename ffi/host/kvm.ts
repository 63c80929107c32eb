// What `/dev/kvm` of this host offers, as facts.
import { runJob } from "../channel.ts";
import { hostLibrary } from "../library.ts";
import { signedWords } from "../memory.ts";
import { check } from "../status.ts";

/** Extensions that decide what an engine can do here, by their kernel numbers. */
const EXTENSIONS = {
  irqchip: 0,
  user_memory: 3,
  set_tss_addr: 4,
  nr_vcpus: 9,
  nr_memslots: 10,
  irqfd: 32,
  pit2: 33,
  ioeventfd: 36,
  tsc_control: 60,
  max_vcpus: 66,
  tsc_deadline_timer: 72,
  readonly_mem: 81,
  x86_smm: 117,
  split_irqchip: 121,
  immediate_exit: 136,
  manual_dirty_log_protect2: 168,
  x86_user_space_msr: 188,
  dirty_log_ring: 192,
} as const;

export type KvmExtension = keyof typeof EXTENSIONS;

export interface KvmFacts {
  /** 12 since 2007. */
  readonly apiVersion: number;
  /** 0: absent; else 1 or a number that the extension defines. */
  readonly extensions: Readonly<Record<KvmExtension, number>>;
}

/** Asks `/dev/kvm`. Throws a `HostError`: `ENOENT`: no device; `EACCES`: not allowed to open it. */
export function probeKvm(): KvmFacts {
  const names = Object.keys(EXTENSIONS) as KvmExtension[];
  const values = signedWords(names.length);
  for (const [index, name] of names.entries()) values[index] = EXTENSIONS[name];
  const apiVersion = check(hostLibrary().fluxvm_host_kvm_probe(values, BigInt(values.length)), "probe", "/dev/kvm");
  const extensions = Object.fromEntries(names.map((name, index) => [name, values[index] ?? 0]));
  return { apiVersion, extensions: extensions as Record<KvmExtension, number> };
}

const MEASURED_INSTRUCTIONS = 100_000;
/** Tells emulation from virtualisation already; only what is not clearly the one is measured in full. */
const FIRST_INSTRUCTIONS = 10_000;
const CLEARLY_EMULATED_PER_SECOND = 10_000_000;

/**
 * Privileged instructions a second that a guest gets through here. Takes some milliseconds. Rejects with a `HostError`:
 * `ENOENT`: no device; `EACCES`: not allowed.
 */
export async function kvmSpeed(): Promise<number> {
  const first = await runJob("kvmMeasure", { instructions: FIRST_INSTRUCTIONS }, "/dev/kvm");
  if (first.perSecond < CLEARLY_EMULATED_PER_SECOND) return first.perSecond;
  return (await runJob("kvmMeasure", { instructions: MEASURED_INSTRUCTIONS }, "/dev/kvm")).perSecond;
}
