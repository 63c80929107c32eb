// A Debian machine with a KVM of its own, emulated by QEMU: started from the cached parts, driven over a serial port,
// thrown away at its end. Nothing that happens inside outlives it, and it does not outlive this process.
import { freePort } from "../../harness/free-port.ts";
import { join } from "node:path";
import type { Subprocess } from "bun";
import { Cache } from "./cache.ts";
import { clockArguments } from "./clock.ts";
import { ENDS_WITH_US } from "./command.ts";
import { Initramfs } from "./initramfs.ts";
import { type Job, type JobOutput, Jobs } from "./jobs.ts";
import { EARLY_FOLDER, KERNEL_IMAGE, kernelPart, type KernelSeries, MODULES_IMAGE } from "./kernel.ts";
import { PACKAGES_IMAGE, packagesPart } from "./packages.ts";
import { makePayload, REPOSITORY } from "./payload.ts";
import { ROOT_IMAGE, rootPart } from "./root.ts";
import { templateFolder, templatePart, type TemplateName } from "./template.ts";
import { BUSYBOX, qemuFiles, tool, toolsPart } from "./tools.ts";

export interface HostOptions {
  readonly cpus: number;
  readonly memoryMib: number;
  readonly kernel: KernelSeries;
  /** What runs as the first process: a few mounts and a reaper, or the distribution's own. */
  readonly init: "plain" | "systemd";
  /** Whether the repository is inside too, for tests that run there. */
  readonly tree: boolean;
  /** Templates that are made outside and found in the job's folder. */
  readonly templates: readonly TemplateName[];
  /** Makes everything anew, with the packages of today. */
  readonly rebuild: boolean;
  /** Ports of the machine that are wanted on this one's loopback address. */
  readonly ports: readonly number[];
  /** Told what is being built, a line at a time. */
  say(line: string): void;
}

export const DEFAULT_OPTIONS: HostOptions = {
  cpus: 2,
  memoryMib: 4_096,
  kernel: "6.1",
  init: "plain",
  tree: false,
  templates: [],
  rebuild: false,
  ports: [],
  say: () => undefined,
};

/**
 * Processors of a host on which guests run. Where guests run on two emulated processors at a time, sooner or later one of
 * them begins anew or the kernel of the host itself falls over, in the step back from a guest; QEMU alone does that too,
 * restoring a microvm over and over.
 */
export const CPUS_FOR_GUESTS = 1;

const CACHE = join(REPOSITORY, ".cache/kvm-host");
/** Where jobs start, and where the disk with the work is mounted. */
const JOB_FOLDER = "/job";
const BOOT_TIMEOUT_MS = 180_000;
const LAST_LINES = 100;
const KERNEL_ARGUMENTS = [
  ...["console=ttyS0", "quiet", "panic=-1", "net.ifnames=0", "random.trust_cpu=on"],
  ...["mitigations=off", "no_timer_check"],
];

/** Units that only cost time here; the first waits a minute and a half for a device manager that is not installed. */
const MASKED_UNITS = [
  ...["serial-getty@ttyS0.service", "getty-static.service", "getty@tty1.service", "e2scrub_reap.service"],
  ...["systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "systemd-update-utmp.service"],
  ...["modprobe@efi_pstore.service", "modprobe@dm_mod.service"],
];

export interface Finished {
  readonly status: number;
  readonly output: Uint8Array;
  readonly errors: string;
}

export class KvmHost {
  /** For each wanted port of the machine, the port of this one. */
  readonly ports: ReadonlyMap<number, number>;
  readonly #process: Subprocess;
  readonly #jobs: Jobs;
  /** What its kernel and its emulator said. */
  readonly #logs: readonly string[];
  readonly #close: () => Promise<void>;

  private constructor(parts: {
    ports: ReadonlyMap<number, number>;
    process: Subprocess;
    jobs: Jobs;
    logs: readonly string[];
    close: () => Promise<void>;
  }) {
    this.ports = parts.ports;
    this.#process = parts.process;
    this.#jobs = parts.jobs;
    this.#logs = parts.logs;
    this.#close = parts.close;
  }

  /**
   * Starts a machine and waits until it takes jobs.
   * @throws Error with the end of the machine's console when it does not come up
   */
  static async boot(wanted: Partial<HostOptions> = {}): Promise<KvmHost> {
    const options = { ...DEFAULT_OPTIONS, ...wanted };
    await using acquired = new AsyncDisposableStack();
    const cache = await Cache.open(CACHE, options.say);
    const use = async (part: Parameters<Cache["use"]>[0]): Promise<string> => {
      if (options.rebuild) await cache.forget(part);
      const { folder, lock } = await cache.use(part);
      acquired.defer(() => lock.release());
      return folder;
    };
    const tools = await use(toolsPart);
    const kernel = await use(await kernelPart(options.kernel, tools));
    const root = await use(rootPart);
    const packages = await use(await packagesPart(options.kernel));
    const templates = new Map<string, string>();
    for (const name of options.templates) {
      templates.set(name, templateFolder(await use(await templatePart(name)), name));
    }
    const run = await cache.openRun();
    acquired.defer(run.close);
    const initramfs = join(run.folder, "initramfs");
    await Bun.write(initramfs, await makeInitramfs(tools, kernel));
    const disks = [
      { file: join(root, ROOT_IMAGE), options: "snapshot=on" },
      { file: join(kernel, MODULES_IMAGE), options: "readonly=on" },
      { file: await makePayload({ tree: options.tree, templates }, run.folder), options: "cache=unsafe" },
      { file: join(packages, PACKAGES_IMAGE), options: "readonly=on" },
    ];
    const ports = new Map<number, number>();
    for (const port of options.ports) ports.set(port, await freePort());
    const [log, complaints] = [join(run.folder, "console.log"), join(run.folder, "qemu.log")];
    const child = start(tools, complaints, [
      ...machineArguments(options),
      ...["-kernel", join(kernel, KERNEL_IMAGE), "-initrd", initramfs],
      ...["-append", [...KERNEL_ARGUMENTS, ...(await clockArguments()), ...initArguments(options)].join(" ")],
      ...["-serial", `file:${log}`],
      ...disks.flatMap(diskArguments),
      ...networkArguments(ports),
      ...["-device", "virtio-serial-pci", "-chardev", "socket,id=jobs,fd=3"],
      ...["-device", "virtserialport,chardev=jobs,nr=1"],
    ]);
    acquired.defer(() => end(child));
    const jobs = await Jobs.open(Number(child.stdio[3]));
    const timer = setTimeout(() => child.kill("SIGKILL"), BOOT_TIMEOUT_MS);
    try {
      await jobs.ready;
    } catch (error) {
      await end(child);
      throw new Error(`the machine did not come up; it said:\n${await lastWords([log, complaints])}`, { cause: error });
    } finally {
      clearTimeout(timer);
    }
    const owned = acquired.move();
    return new KvmHost({ ports, process: child, jobs, logs: [log, complaints], close: () => owned.disposeAsync() });
  }

  /**
   * Starts a program as root, in the folder with the binary, with `fluxctl` and `bun` in its path. A machine that is
   * lost meanwhile is an error that tells what it said last.
   */
  start(argv: readonly string[], output: JobOutput, env: Readonly<Record<string, string>> = {}): Job {
    const job = this.#jobs.start({ argv, folder: JOB_FOLDER, env }, output);
    const ended = job.ended.catch(async (cause: Error) => {
      throw new Error(`${cause.message}; it said:\n${await lastWords(this.#logs)}`, { cause });
    });
    // Whoever waits for the end hears of it; nobody has to.
    ended.catch(() => undefined);
    return { ...job, ended };
  }

  /** Runs a program to its end and keeps what it wrote. */
  async run(argv: readonly string[], env: Readonly<Record<string, string>> = {}): Promise<Finished> {
    const output: Uint8Array[] = [];
    const errors: Uint8Array[] = [];
    const job = this.start(argv, { output: (bytes) => output.push(bytes), errors: (bytes) => errors.push(bytes) }, env);
    job.endInput();
    const { status, failure = "" } = await job.ended;
    return { status, output: Buffer.concat(output), errors: Buffer.concat(errors).toString() + failure };
  }

  /** Writes a file inside. @throws Error when that fails */
  async write(path: string, content: Uint8Array, mode: number): Promise<void> {
    let errors = "";
    const script = 'umask 077; cat >"$1" && chmod "$2" "$1"';
    const job = this.start(["sh", "-c", script, "sh", path, mode.toString(8)], {
      output: () => undefined,
      errors: (bytes) => {
        errors += Buffer.from(bytes).toString();
      },
    });
    job.write(content);
    job.endInput();
    const { status } = await job.ended;
    if (status !== 0) throw new Error(`cannot write ${path} in the machine: ${errors}`);
  }

  get ended(): Promise<unknown> {
    return this.#process.exited;
  }

  /** Switches the machine off, without asking it, and removes its files. */
  close(): Promise<void> {
    return this.#close();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }
}

async function makeInitramfs(tools: string, kernel: string): Promise<Uint8Array> {
  const files = new Initramfs();
  const guest = join(import.meta.dir, "guest");
  files.addFolder("bin");
  await files.addFile("bin/busybox", join(tools, BUSYBOX));
  await files.addFile("init", join(guest, "init"));
  await files.addFilesOf("early", join(kernel, EARLY_FOLDER));
  files.addFolder("kvm-host");
  await files.addFile("kvm-host/frames.ts", join(import.meta.dir, "frames.ts"));
  await files.addFilesOf("kvm-host/guest", guest);
  return files.bytes();
}

/** What the kernel's command line says to the first process. */
function initArguments({ init }: HostOptions): string[] {
  const masks = init === "systemd" ? MASKED_UNITS.map((unit) => `systemd.mask=${unit}`) : [];
  return [`host_init=${init}`, ...masks];
}

function machineArguments({ cpus, memoryMib }: HostOptions): string[] {
  return [
    ...["-M", "q35", "-accel", "tcg,thread=multi,tb-size=1024", "-cpu", "EPYC,+svm,+npt"],
    ...["-smp", String(cpus), "-m", String(memoryMib)],
    ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-device", "virtio-rng-pci"],
  ];
}

function diskArguments({ file, options }: { file: string; options: string }, index: number): string[] {
  // A comma in a file name is written twice.
  const drive = `file=${file.replaceAll(",", ",,")},format=raw,if=none,id=disk${index},${options}`;
  return ["-drive", drive, "-device", `virtio-blk-pci,drive=disk${index}`];
}

function networkArguments(ports: ReadonlyMap<number, number>): string[] {
  const forwards = [...ports].map(([inside, outside]) => `,hostfwd=tcp:127.0.0.1:${outside}-:${inside}`);
  return ["-netdev", `user,id=net,restrict=on${forwards.join("")}`, "-device", "virtio-net-pci,netdev=net"];
}

function start(tools: string, complaints: string, args: readonly string[]): Subprocess {
  const files = qemuFiles(tools);
  return Bun.spawn([...ENDS_WITH_US, ...tool(tools, "qemu"), ...files.args, ...args], {
    env: { ...process.env, ...files.env },
    stdio: ["ignore", "ignore", Bun.file(complaints), "pipe"],
  });
}

async function end(child: Subprocess): Promise<void> {
  child.kill("SIGKILL");
  await child.exited;
}

async function lastWords(logs: readonly string[]): Promise<string> {
  return (await Promise.all(logs.map(lastLines))).join("\n");
}

async function lastLines(file: string): Promise<string> {
  const text = await Bun.file(file)
    .text()
    .catch(() => "");
  return text.trimEnd().split("\n").slice(-LAST_LINES).join("\n");
}
