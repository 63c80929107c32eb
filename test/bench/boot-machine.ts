// Machines that are the same but for their monitor: one of `fluxvm-hypervisor`, one of QEMU's microvm, both with the kernel,
// initrd, root and memory of a template, a configuration disk, a vsock and, where it is asked for, a tap.
import { chown, mkdir, open, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { connectVsock } from "../../ffi/host/vsock.ts";
import { GUEST_AGENT_PORT, guestLink } from "../../plugins/backend-flux-vm/link.ts";
import { mount, unmount } from "../../ffi/host/mounts.ts";
import { writeConfigDisk } from "../../plugins/host/config-disk.ts";
import type { GuestChannel, OpenLink } from "../../src/contracts/channel.ts";
import { createGuestConnector } from "../../src/guest/connector.ts";
import type { Template } from "../../src/templates/format.ts";
import { processes } from "./boot-usage.ts";
import { type ExecTrace, unixMs } from "./exec-trace.ts";
import { run } from "./measure.ts";

export const MONITORS = ["flux-vm", "qemu"] as const;
export type Monitor = (typeof MONITORS)[number];

/** Programs of the monitors, as the trace of executions knows them. */
export const PROGRAMS = ["*fluxvm-hypervisor", "*qemu-system*"] as const;
export const MEMORY_MIB = 256;
const HYPERVISOR = join(import.meta.dir, "../../dist/native/fluxvm-hypervisor");
const CID = { "flux-vm": 3, qemu: 4 } as const;
const TOKEN = "the token of this machine";
const READY_TIMEOUT_MS = 120_000;
const COMMAND_TIMEOUT_MS = 120_000;
const OUTPUT_MAX_BYTES = 64 * 1024;
const VSOCK_SOCKET = "vsock.sock";
/** What a machine of ours has in its jail, and its memory. */
const [DISK, SOCKETS, MEMORY] = ["disk", "sockets", "memory"];
const UID = 3_000_000;

export interface MachineOptions {
  readonly monitor: Monitor;
  readonly template: Template;
  /** Is made, and removed with the machine. */
  readonly directory: string;
  /** An existing tap device for its network card, and whether the kernel's vhost-net moves the frames. */
  readonly tap?: { readonly name: string; readonly vhost: boolean };
}

export class BenchMachine implements AsyncDisposable {
  private constructor(
    readonly monitor: Monitor,
    readonly directory: string,
    private readonly process: Bun.Subprocess,
    private channel: GuestChannel | null,
    /** From the execution of the monitor until the guest agent has answered. */
    readonly readyMs: number,
    readonly pids: readonly number[],
  ) {}

  /** @throws Error with what the monitor said when the guest agent does not answer */
  static async start(options: MachineOptions, trace: ExecTrace): Promise<BenchMachine> {
    const { monitor, directory, template } = options;
    await mkdir(directory, { mode: 0o711 });
    const identity = { token: TOKEN, hostname: "machine", sharedFolders: [] };
    await writeConfigDisk(join(directory, "config.raw"), identity);
    const argv = await (monitor === "qemu" ? qemuArguments(options) : hypervisorArguments(options));
    const log = join(directory, "monitor.log");
    const child = Bun.spawn(argv, { cwd: directory, stdio: ["ignore", "ignore", Bun.file(log)] });
    try {
      const channel = await createGuestConnector().through({
        open:
          monitor === "qemu"
            ? vsockLink(CID.qemu)
            : guestLink(join(directory, SOCKETS, VSOCK_SOCKET), GUEST_AGENT_PORT),
        token: TOKEN,
        connectTimeoutMs: READY_TIMEOUT_MS,
      });
      const readyUnixMs = unixMs();
      const readyMs = readyUnixMs - (await trace.beganUnixMs(child.pid));
      return new BenchMachine(monitor, directory, child, channel, readyMs, await processes(child.pid));
    } catch (error) {
      child.kill("SIGKILL");
      const said = `${await Bun.file(log).text()}${await Bun.file(join(directory, "console.log"))
        .text()
        .catch(() => "")}`;
      throw new Error(`${monitor}: ${(error as Error).message}; it said:\n${said}`, { cause: error });
    }
  }

  /** What a command prints that succeeds. */
  async output(command: string): Promise<string> {
    if (this.channel === null) throw new Error("nobody talks to this machine any more");
    const bounds = { timeoutMs: COMMAND_TIMEOUT_MS, outputMaxBytes: OUTPUT_MAX_BYTES };
    const { exitCode, stdout, stderr } = await this.channel.exec({ command, ...bounds });
    if (exitCode !== 0) throw new Error(`${this.monitor}: ${command}: ${exitCode} ${Buffer.from(stderr).toString()}`);
    return Buffer.from(stdout).toString();
  }

  async write(path: string, content: Uint8Array): Promise<void> {
    await this.channel?.writeFile(Buffer.from(path), content, 0o755, content.length);
  }

  /** From here on nobody talks to it. */
  leaveAlone(): void {
    this.channel?.close();
    this.channel = null;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.leaveAlone();
    this.process.kill("SIGTERM");
    await this.process.exited;
    if (this.monitor === "flux-vm") await unmount(join(this.directory, MEMORY), { detach: true });
    await rm(this.directory, { recursive: true });
  }
}

/** As the agent makes a machine: jailed, over the template's image, in memory that may have huge pages. */
async function hypervisorArguments({ directory, template, tap }: MachineOptions): Promise<string[]> {
  for (const path of [DISK, SOCKETS]) {
    await mkdir(join(directory, path), { mode: 0o700 });
    await chown(join(directory, path), UID, UID);
  }
  const memory = join(directory, MEMORY);
  await mkdir(memory);
  const request = { target: memory, type: "tmpfs", options: `size=${MEMORY_MIB}m,mode=700,huge=advise`, flags: 0 };
  await mount("fluxvm-bench", request);
  const ram = await open(join(memory, "ram"), "wx", 0o600);
  await ram.truncate(MEMORY_MIB * 1024 * 1024);
  await ram.close();
  const config = {
    kernel: template.kernelPath,
    initrd: template.initrdPath,
    kernel_args: `${template.kernelArgs} reboot=k`,
    memory_mib: MEMORY_MIB,
    ram: join(memory, "ram"),
    vcpus: 1,
    rootfs: template.imagePath,
    rootfs_layer: join(directory, DISK, "layer"),
    config_disk: join(directory, "config.raw"),
    console: join(directory, "console.log"),
    vsock_cid: CID["flux-vm"],
    vsock_uds: join(directory, SOCKETS, VSOCK_SOCKET),
    jail: { uid: UID, gid: UID, directory: join(directory, DISK), sockets: join(directory, SOCKETS) },
    ...(tap === undefined ? {} : { tap: tap.name }),
  };
  await writeFile(join(directory, "boot.json"), JSON.stringify(config), { mode: 0o600 });
  const socket = join(directory, SOCKETS, "control.sock");
  return [HYPERVISOR, "--api-sock", socket, "--boot-config", join(directory, "boot.json")];
}

/** The machine that the agent makes of QEMU, without what only the agent needs. */
async function qemuArguments({ directory, template, tap }: MachineOptions): Promise<string[]> {
  const overlay = ["-q", "-f", "qcow2", "-F", "raw", "-b", template.imagePath, join(directory, "root.qcow2")];
  await run(["qemu-img", "create", ...overlay], directory);
  const disk = (id: string, file: string): string[] => [
    ...["-drive", `file=${file},if=none,id=${id}`, "-device", `virtio-blk-device,drive=${id}`],
  ];
  const vhost = tap?.vhost === true ? "on" : "off";
  const card = ["-netdev", `tap,id=net,ifname=${tap?.name},script=no,downscript=no,vhost=${vhost}`];
  return [
    ...["qemu-system-x86_64", "-name", "bench,debug-threads=on", "-nodefaults", "-no-user-config", "-display", "none"],
    ...["-machine", "microvm,rtc=on,pcie=off,usb=off,graphics=off", "-accel", "kvm", "-cpu", "host", "-smp", "1"],
    ...[
      "-m",
      `${MEMORY_MIB}M`,
      "-global",
      "virtio-mmio.force-legacy=false",
      "-no-reboot",
      "-serial",
      "file:console.log",
    ],
    ...["-kernel", template.kernelPath ?? "", "-initrd", template.initrdPath ?? ""],
    ...["-append", `${template.kernelArgs} reboot=t`],
    ...disk("root", "root.qcow2,format=qcow2,aio=io_uring,discard=unmap"),
    ...disk("config", "config.raw,format=raw,readonly=on"),
    ...["-device", `vhost-vsock-device,guest-cid=${CID.qemu}`, "-device", "virtio-rng-device"],
    ...(tap === undefined ? [] : [...card, "-device", "virtio-net-device,netdev=net"]),
  ];
}

function vsockLink(cid: number): OpenLink {
  return (events) =>
    connectVsock(cid, GUEST_AGENT_PORT, {
      binaryType: "uint8array",
      open: (socket) => events.opened(socket),
      data: (_, bytes) => events.received(bytes as Uint8Array),
      drain: () => events.writable(),
      close: () => events.closed("the machine closed the connection"),
      error: (_, error) => events.closed(error.message),
    });
}
