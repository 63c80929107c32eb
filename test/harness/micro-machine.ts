// The micro template, and machines made of templates under emulation: QEMU alone, without a backend of the agent's. What a machine
// writes to its console is kept, so that a boot that fails can be read.
import { mkdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { writeConfigDisk } from "../../plugins/host/config-disk.ts";
import type { GuestChannel } from "../../src/contracts/channel.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import { buildTemplate, type RootSource } from "../../src/templates/build.ts";
import type { Template } from "../../src/templates/format.ts";
import { KERNEL_PACKAGE } from "../../src/templates/sources.ts";
import { TemplateStore } from "../../src/templates/store.ts";

const ROOT = join(import.meta.dir, "../..");
export const GUEST_AGENT = join(ROOT, "dist/native/fluxvm-guest-agent");
/** Packages are fetched once for all runs. */
const PACKAGES = join(ROOT, ".cache/downloads");
const MICRO_SIZE_MIB = 128;
const CONNECT_TIMEOUT_MS = 120_000;
const TOKEN = "the token of this machine";
export const HOSTNAME = "machine-1";

export type MachineType = "q35" | "microvm";

/** Nobody else uses the directories of a test. */
const noLock = async (): Promise<AsyncDisposable> => ({ async [Symbol.asyncDispose]() {} });

/** Builds the micro template of this name below `directory`; `backend` null: any that a host has runs it. */
export function buildMicro(directory: string, name: string, backend: string | null = null): Promise<Template> {
  return build(directory, name, { kind: "micro" }, MICRO_SIZE_MIB, backend);
}

/** Builds a template below `directory`. */
export function build(
  directory: string,
  name: string,
  root: RootSource,
  sizeMib: number,
  backend: string | null = null,
): Promise<Template> {
  return buildTemplate(
    {
      name,
      root,
      kernel: { kind: "package", name: KERNEL_PACKAGE },
      sizeMib,
      memoryMib: 256,
      vcpus: 1,
      backend,
    },
    {
      store: new TemplateStore(join(directory, "templates"), noLock),
      guestAgentPath: GUEST_AGENT,
      packagesDirectory: PACKAGES,
      progress: () => undefined,
    },
  );
}

export class MicroMachine implements AsyncDisposable {
  private constructor(
    readonly directory: string,
    private readonly process: Bun.Subprocess,
    /** How long its disk took, in milliseconds. */
    readonly copiedMs: number,
  ) {}

  /** Starts it with a disk of its own in `directory`, which is made; `more`: further arguments of QEMU. */
  static async start(
    template: Template,
    type: MachineType,
    directory: string,
    more: readonly string[] = [],
  ): Promise<MicroMachine> {
    await mkdir(directory, { mode: 0o700 });
    const beganMs = performance.now();
    await Bun.spawn(["cp", "--sparse=always", template.imagePath, join(directory, "root.raw")]).exited;
    const copiedMs = performance.now() - beganMs;
    await writeConfigDisk(join(directory, "config.raw"), { token: TOKEN, hostname: HOSTNAME, sharedFolders: [] });
    const process = Bun.spawn(["qemu-system-x86_64", ...(await machineArguments(template, type)), ...more], {
      cwd: directory,
      stdio: ["ignore", "ignore", Bun.file(join(directory, "qemu.log"))],
    });
    return new MicroMachine(directory, process, copiedMs);
  }

  get pid(): number {
    return this.process.pid;
  }

  /** A channel to its guest agent, over the serial port. */
  connect(token = TOKEN): Promise<GuestChannel> {
    const path = join(this.directory, "agent.sock");
    return createGuestConnector().unix({ path, token, connectTimeoutMs: CONNECT_TIMEOUT_MS, device: true });
  }

  pressPowerButton(): Promise<void> {
    return this.#monitor("system_powerdown");
  }

  async #monitor(command: string): Promise<void> {
    const socket = await Bun.connect({ unix: join(this.directory, "monitor.sock"), socket: { data: () => undefined } });
    socket.write(`${command}\n`);
    socket.flush();
  }

  /** QEMU's exit status, or null when it has not ended in time. */
  async ended(timeoutMs: number): Promise<number | null> {
    return Promise.race([this.process.exited, Bun.sleep(timeoutMs).then(() => null)]);
  }

  console(): Promise<string> {
    return readFile(join(this.directory, "console.log"), "utf8").catch(() => "");
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.process.kill("SIGKILL");
    await this.process.exited;
  }
}

async function machineArguments(template: Template, type: MachineType): Promise<string[]> {
  const bus = type === "q35" ? "pci" : "device";
  const kernelArgs = [template.kernelArgs ?? ""];
  // Emulated, this machine has nothing to measure its processor's clock with.
  if (type === "microvm") kernelArgs.push(`tsc_early_khz=${await hostKhz()}`);
  const disk = (id: string, file: string, more = ""): string[] => [
    ...["-drive", `file=${file},format=raw,if=none,id=${id}${more}`],
    ...["-device", `virtio-blk-${bus},drive=${id}`],
  ];
  return [
    ...["-machine", type === "q35" ? "q35" : "microvm,rtc=on", "-accel", "tcg", "-cpu", "max", "-m", "256"],
    ...["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot", "-serial", "file:console.log"],
    ...["-monitor", "unix:monitor.sock,server=on,wait=off"],
    ...["-kernel", template.kernelPath ?? "", "-initrd", template.initrdPath ?? "", "-append", kernelArgs.join(" ")],
    ...disk("root", "root.raw"),
    ...disk("config", "config.raw", ",readonly=on"),
    ...["-chardev", "socket,id=agent,path=agent.sock,server=on,wait=off", "-device", `virtio-serial-${bus}`],
    ...[
      "-device",
      "virtserialport,id=agent-port,chardev=agent,name=org.fluxvm.agent.0",
      "-device",
      `virtio-rng-${bus}`,
    ],
  ];
}

async function hostKhz(): Promise<number> {
  const mhz = /^cpu MHz\s*: ([\d.]+)$/m.exec(await readFile("/proc/cpuinfo", "utf8"))?.[1];
  return Math.round(Number(mhz) * 1000);
}
