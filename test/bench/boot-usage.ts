// What a monitor takes of its host: memory, wake-ups and processor time of its threads, exits of its guest, system calls.
// Everything is read from the kernel, for all processes of the monitor together.
import { mkdtemp, readdir, readFile, rmdir } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { run } from "./measure.ts";
import { TraceInstance } from "./trace-instance.ts";

const KIB_PER_MIB = 1024;
const NS_PER_MS = 1e6;
const SYSCALLS = "events/raw_syscalls/sys_enter";
const MMIO_WRITE = /-(\d+) +\[\d+\].*kvm_mmio: mmio write len 4 gpa (0x[\da-f]+) /g;
/** Of a virtio device in memory, and where in it a queue is notified. */
const [WINDOW_BYTES, NOTIFY] = [0x200, 0x50];
/**
 * Threads that run the guests, of both monitors; and those that the kernel keeps for a ring of files, which look every five
 * seconds whether they are still needed.
 */
const NOT_WOKEN_BY_MONITOR = /^(vcpu\d+|CPU \d+\/KVM|iou-wrk-\d+)$/;

const number = (text: string, name: string): number => Number(new RegExp(`^${name}:\\s*(\\d+)`, "m").exec(text)?.[1]);

/** A process and all that it has started. */
export async function processes(pid: number): Promise<number[]> {
  const threads = await readdir(`/proc/${pid}/task`);
  const children = await Promise.all(threads.map((tid) => readFile(`/proc/${pid}/task/${tid}/children`, "utf8")));
  const pids = children.join(" ").split(" ").filter(Boolean).map(Number);
  return [pid, ...(await Promise.all(pids.map(processes))).flat()];
}

/**
 * MiB that the processes alone have, shared pages in parts, beside the memory of a guest of `guestMib`: that is any mapping
 * that is at least as large.
 */
export async function monitorMib(pids: readonly number[], guestMib: number): Promise<number> {
  const maps = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/smaps`, "utf8")));
  const mappings = maps.join("").split(/^(?=[\da-f]+-[\da-f]+ )/m);
  const own = mappings.filter((text) => number(text, "Size") < guestMib * KIB_PER_MIB);
  return own.reduce((kib, text) => kib + number(text, "Pss"), 0) / KIB_PER_MIB;
}

export interface Activity {
  /** How often threads of the monitor were let run, other than those that run the guest. */
  readonly wakeUps: number;
  /** Milliseconds on a processor, of all threads and of the kernel's own for this monitor. */
  readonly cpuMs: number;
}

/** Since the processes began. */
export async function activity(pids: readonly number[]): Promise<Activity> {
  let [wakeUps, cpuNs] = [0, 0];
  for (const pid of pids) {
    for (const tid of await readdir(`/proc/${pid}/task`)) {
      const task = `/proc/${pid}/task/${tid}`;
      const [ranNs = ""] = (await readFile(`${task}/schedstat`, "utf8")).split(" ");
      cpuNs += Number(ranNs);
      if (NOT_WOKEN_BY_MONITOR.test((await readFile(`${task}/comm`, "utf8")).trim())) continue;
      wakeUps += number(await readFile(`${task}/status`, "utf8"), "voluntary_ctxt_switches");
    }
  }
  for (const helper of await kernelThreads(pids))
    cpuNs += Number((await readFile(`/proc/${helper}/schedstat`, "utf8")).split(" ")[0]);
  return { wakeUps, cpuMs: cpuNs / NS_PER_MS };
}

/** Threads that the kernel has for these processes: they bear their ids in their names. */
async function kernelThreads(pids: readonly number[]): Promise<string[]> {
  const names = new Set(pids.flatMap((pid) => [`vhost-${pid}`, `kvm-pit/${pid}`]));
  const all = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const comms = await Promise.all(all.map((pid) => readFile(`/proc/${pid}/comm`, "utf8").catch(() => "")));
  return all.filter((_, index) => names.has(comms[index]?.trim() ?? ""));
}

/** Notifications by which guests ask their virtio devices for something, as KVM sees them; they are expected to be few. */
export class RequestCounts implements AsyncDisposable {
  private constructor(private readonly trace: TraceInstance) {}

  static async start(): Promise<RequestCounts> {
    const trace = await TraceInstance.open();
    await trace.write("events/kvm/kvm_mmio/enable", "1");
    return new RequestCounts(trace);
  }

  /** Since the start. */
  async of(pids: readonly number[]): Promise<number> {
    const tids = new Set((await Promise.all(pids.map((pid) => readdir(`/proc/${pid}/task`)))).flat());
    const written = (await this.trace.read("trace")).matchAll(MMIO_WRITE);
    return written
      .filter(([, tid = "", address]) => tids.has(tid) && Number(address) % WINDOW_BYTES === NOTIFY)
      .toArray().length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.trace.write("events/kvm/kvm_mmio/enable", "0");
    await this.trace[Symbol.asyncDispose]();
  }
}

/** Exits of guests, as KVM counts them. */
export class ExitCounts implements AsyncDisposable {
  private constructor(private readonly mount: string) {}

  static async open(): Promise<ExitCounts> {
    const mount = await mkdtemp(join(tmpdir(), "fluxvm-debug-"));
    await run(["mount", "-t", "debugfs", "none", mount], "/");
    return new ExitCounts(mount);
  }

  /** By KVM's names for them; `exits` is all. */
  async of(pids: readonly number[]): Promise<Readonly<Record<string, number>>> {
    const folder = join(this.mount, "kvm");
    const machines = (await readdir(folder)).filter((name) => pids.some((pid) => name.startsWith(`${pid}-`)));
    const [machine] = machines;
    if (machine === undefined) throw new Error(`KVM has no machine of ${pids.join()}`);
    const names = (await readdir(join(folder, machine))).filter((name) => name.endsWith("exits"));
    const counts = await Promise.all(
      names.map(async (name) => Number(await readFile(join(folder, machine, name), "utf8"))),
    );
    return Object.fromEntries(names.map((name, index) => [name, counts[index] ?? 0]));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await run(["umount", this.mount], "/");
    await rmdir(this.mount);
  }
}

/** System calls of all processes while it is there; what is measured beside it is slowed down by it. */
export class SyscallCounts implements AsyncDisposable {
  private constructor(private readonly trace: TraceInstance) {}

  static async start(): Promise<SyscallCounts> {
    const trace = await TraceInstance.open();
    await trace.write(`${SYSCALLS}/trigger`, "hist:keys=common_pid:size=8192");
    return new SyscallCounts(trace);
  }

  /** Since the start. */
  async of(pids: readonly number[]): Promise<number> {
    const tids = new Set((await Promise.all(pids.map((pid) => readdir(`/proc/${pid}/task`)))).flat());
    let count = 0;
    for (const line of (await this.trace.read(`${SYSCALLS}/hist`)).split("\n")) {
      const [, tid = "", hits] = /common_pid:\s*(\d+) .*hitcount:\s*(\d+)/.exec(line) ?? [];
      if (tids.has(tid)) count += Number(hits);
    }
    return count;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.trace.write(`${SYSCALLS}/trigger`, "!hist:keys=common_pid:size=8192");
    await this.trace[Symbol.asyncDispose]();
  }
}
