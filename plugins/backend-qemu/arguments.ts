// The command line of QEMU for one sandbox: no default device, every device named, block devices as a graph of nodes so
// that nothing is guessed from a file's content. The image and the configuration disk come as descriptors.
import { join } from "node:path";
import type { JsonObject } from "../../src/contracts/json.ts";
import type { QemuSpec } from "./request.ts";
import { folderArguments, sharedMemory } from "./shared-folders.ts";

/** The name of the serial port that carries the guest-agent protocol, as the guest agent looks for it. */
const AGENT_PORT = "org.fluxvm.agent.0";
/** Node of the sandbox's own disk, which holds its snapshots. */
export const ROOT_NODE = "root";

/** Names of what a launch has in its directories. */
export const QMP_SOCKET = "qmp.sock";
export const AGENT_SOCKET = "agent.sock";
export const SERIAL_SOCKET = "serial.sock";
export const CONSOLE_LOG = "console.log";
export const DISK_FILE = "root.qcow2";
const ROOT_DEVICE = "disk0";

/** Where a launch has its files; descriptors are numbers of the QEMU process. */
export interface MachineFiles {
  readonly shortName: string;
  readonly socketDir: string;
  /** Writable for the QEMU process. */
  readonly workDir: string;
  readonly volumeDir: string;
  readonly image: number;
  readonly config: number;
  /** What cloud-init reads, if there is anything. */
  readonly seed: number | null;
  /** The machine's id and the descriptor of what carries its vsock, for one that is reached by it. */
  readonly vsock: { readonly cid: number; readonly descriptor: number } | null;
  /** Queues of its tap device, and for each what lets the kernel move its frames, where the host has that. */
  readonly tap: { readonly mac: string; readonly queues: readonly number[]; readonly vhost: readonly number[] } | null;
  /** What the kernel must be told of this host, beside the sandbox's own arguments. */
  readonly kernelArguments: string;
}

/** Arguments for QEMU 7.2 and later, without the program's own name. */
export function qemuArguments(spec: QemuSpec, files: MachineFiles): string[] {
  return [
    ...["-name", `guest=${files.shortName}`],
    ...["-no-user-config", "-nodefaults", "-display", "none", "-vga", "none"],
    ...machine(spec),
    // The agent lets it run once everything is known to be there.
    "-S",
    ...["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"],
    ...["-chardev", `socket,id=qmp,path=${escaped(join(files.socketDir, QMP_SOCKET))},server=on,wait=off`],
    ...["-mon", "chardev=qmp,mode=control"],
    ...boot(spec, files),
    ...disks(spec, files),
    ...folderArguments(spec.shared_folders, files.socketDir, transport(spec)),
    ...serial(files),
    ...channel(spec, files),
    ...[
      "-device",
      `${device(spec, "virtio-rng")},rng=entropy`,
      "-object",
      "rng-random,id=entropy,filename=/dev/urandom",
    ],
    ...network(spec, files),
  ];
}

function device(spec: QemuSpec, name: string): string {
  return `${name}-${transport(spec)}`;
}

/** The device of the sandbox's own disk, as the monitor finds it: on PCI it lies behind the device that was asked for. */
export function rootDevice({ machine }: QemuSpec): string {
  return machine === "microvm" ? ROOT_DEVICE : `/machine/peripheral/${ROOT_DEVICE}/virtio-backend`;
}

/** The virtio transport of the machine. */
function transport(spec: QemuSpec): string {
  return spec.machine === "microvm" ? "device" : "pci";
}

/** A comma ends a value of an option unless it is doubled. */
function escaped(value: string): string {
  return value.replaceAll(",", ",,");
}

function machine(spec: QemuSpec): string[] {
  // Without its clock a distribution's kernel spins for seconds.
  const type =
    spec.machine === "microvm" ? "microvm,rtc=on,pcie=off,usb=off,graphics=off" : "q35,usb=off,graphics=off,vmport=off";
  // Whoever serves a folder reads the guest's requests where they lie.
  const isShared = spec.shared_folders.length > 0;
  return [
    ...(isShared ? sharedMemory(spec.memory_mib) : []),
    ...[
      "-machine",
      isShared ? `${type},memory-backend=ram` : type,
      "-accel",
      spec.accel === "kvm" ? "kvm" : "tcg,thread=multi",
    ],
    ...["-cpu", spec.accel === "kvm" ? "host" : "max", "-smp", `cpus=${spec.vcpus}`, "-m", `${spec.memory_mib}M`],
    ...(spec.machine === "microvm" ? ["-global", "virtio-mmio.force-legacy=false"] : []),
  ];
}

function boot(spec: QemuSpec, files: MachineFiles): string[] {
  if (spec.kernel === null) return [];
  // What resets a microvm is a triple fault.
  const append = [spec.kernel_args, files.kernelArguments, spec.machine === "microvm" ? "reboot=t" : ""]
    .filter((text) => text !== "")
    .join(" ");
  return [
    ...["-kernel", spec.kernel],
    ...(spec.initrd === null ? [] : ["-initrd", spec.initrd]),
    ...(append === "" ? [] : ["-append", append]),
  ];
}

const node = (value: JsonObject): string[] => ["-blockdev", JSON.stringify(value)];
const passed = (descriptor: number, set: number): string[] => ["-add-fd", `fd=${descriptor},set=${set}`];
const readOnly = { "read-only": true, "auto-read-only": false };

function disks(spec: QemuSpec, files: MachineFiles): string[] {
  return [
    ...passed(files.image, 1),
    ...node({ "node-name": "image-file", driver: "file", filename: "/dev/fdset/1", ...readOnly }),
    ...node({
      "node-name": "image",
      driver: spec.image_format,
      file: "image-file",
      ...readOnly,
      // Never what the image itself names as its base.
      ...(spec.image_format === "qcow2" ? { backing: null } : {}),
    }),
    ...node({ "node-name": "root-file", driver: "file", filename: join(files.volumeDir, DISK_FILE), discard: "unmap" }),
    ...node({ "node-name": ROOT_NODE, driver: "qcow2", file: "root-file", backing: "image", discard: "unmap" }),
    ...[
      "-device",
      `${device(spec, "virtio-blk")},drive=${ROOT_NODE},id=${ROOT_DEVICE}${spec.kernel === null ? ",bootindex=1" : ""}`,
    ],
    ...smallDisk(spec, files.config, 2, "config"),
    ...(files.seed === null ? [] : smallDisk(spec, files.seed, 3, "seed")),
  ];
}

/** A disk that the agent made, to be read: `descriptor` is its file, `number` its place among the disks. */
function smallDisk(spec: QemuSpec, descriptor: number, number: number, name: string): string[] {
  return [
    ...passed(descriptor, number),
    ...node({ "node-name": `${name}-file`, driver: "file", filename: `/dev/fdset/${number}`, ...readOnly }),
    ...node({ "node-name": name, driver: "raw", file: `${name}-file`, ...readOnly }),
    ...["-device", `${device(spec, "virtio-blk")},drive=${name},id=disk${number - 1},serial=fluxvm-${name}`],
  ];
}

function serial({ socketDir, workDir }: MachineFiles): string[] {
  const socket = escaped(join(socketDir, SERIAL_SOCKET));
  const log = escaped(join(workDir, CONSOLE_LOG));
  return [
    ...["-chardev", `socket,id=serial,path=${socket},server=on,wait=off,logfile=${log},logappend=on`],
    ...["-serial", "chardev:serial"],
  ];
}

function channel(spec: QemuSpec, { socketDir, vsock }: MachineFiles): string[] {
  if (vsock !== null) {
    return ["-device", `${device(spec, "vhost-vsock")},guest-cid=${vsock.cid},vhostfd=${vsock.descriptor}`];
  }
  return [
    ...["-device", `${device(spec, "virtio-serial")},id=ports,max_ports=2`],
    ...["-chardev", `socket,id=agent,path=${escaped(join(socketDir, AGENT_SOCKET))},server=on,wait=off`],
    ...["-device", `virtserialport,id=agent-port,chardev=agent,name=${AGENT_PORT}`],
  ];
}

function network(spec: QemuSpec, { tap }: MachineFiles): string[] {
  const { mode, mac, forwards } = spec.network;
  if (tap !== null) return tapArguments(spec, tap);
  if (mode !== "user") return [];
  const forwarded = forwards.map(
    ({ protocol, host_port, guest_port }) => `,hostfwd=${protocol}:127.0.0.1:${host_port}-:${guest_port}`,
  );
  const card = `${device(spec, "virtio-net")},netdev=net0${mac === null ? "" : `,mac=${mac}`}`;
  return ["-netdev", `user,id=net0${forwarded.join("")}`, "-device", card];
}

/** The device is open already: QEMU itself is in a network with nothing in it. */
function tapArguments(spec: QemuSpec, { mac, queues, vhost }: NonNullable<MachineFiles["tap"]>): string[] {
  const isOne = queues.length === 1;
  const descriptors = (name: string, numbers: readonly number[]) => `${name}${isOne ? "" : "s"}=${numbers.join(":")}`;
  const kernel = vhost.length === 0 ? "" : `,vhost=on,${descriptors("vhostfd", vhost)}`;
  // Each pair has an interrupt for either way; two more are for the card itself.
  const vectors = transport(spec) === "pci" ? `,vectors=${2 * queues.length + 2}` : "";
  const several = isOne ? "" : `,mq=on${vectors}`;
  return [
    ...["-netdev", `tap,id=net0,${descriptors("fd", queues)}${kernel}`],
    ...["-device", `${device(spec, "virtio-net")},netdev=net0,mac=${mac}${several}`],
  ];
}
