// One running virtual machine on QEMU: its monitor, the way to its guest agent, and the servers of its shared folders.
import { join } from "node:path";
import type { ProcessIdentity, ResourceLimits, Snapshot } from "../../src/contracts/backend.ts";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { lastLineOf } from "../host/log-tail.ts";
import { MachineInstance, NO_ROOM } from "../host/machine-instance.ts";
import { isAlive } from "../host/process.ts";
import type { GroupResources } from "../host/resources.ts";
import { MachineConsole } from "../host/serial-console.ts";
import { AGENT_SOCKET, CONSOLE_LOG, SERIAL_SOCKET } from "./arguments.ts";
import { vsockLink } from "./channel.ts";
import type { Monitor } from "./monitor.ts";

/** What the guest agent says when every shared folder is mounted, and on the console when one is not. */
const FOLDERS_MOUNTED = "shared-folders";
const FOLDER_COMPLAINT = "shared folder ";

export interface QemuMachine {
  readonly identity: ProcessIdentity;
  readonly monitor: Monitor;
  readonly socketDir: string;
  readonly workDir: string;
  /** What QEMU complains of. */
  readonly processLog: string;
  readonly token: string;
  /** The machine's vsock id, or null for one that is reached over its serial port. */
  readonly cid: number | null;
  /** How long the guest agent may take to answer. */
  readonly readyTimeoutMs: number;
  readonly guest: GuestConnector;
  /** Null without control groups. */
  readonly resources: GroupResources | null;
  /** Its own disk, as the monitor names it. */
  readonly rootDevice: string;
  /** Who serves its shared folders. */
  readonly servers: readonly ProcessIdentity[];
  readonly isNew: boolean;
  /** Resolves when this agent's own child ended; absent for an adopted machine. */
  readonly exited?: Promise<number | null>;
}

export class QemuInstance extends MachineInstance {
  readonly folderServers: readonly number[];
  readonly #machine: QemuMachine;

  constructor(machine: QemuMachine) {
    const consoleLog = join(machine.workDir, CONSOLE_LOG);
    super({
      ...machine,
      visiblePid: machine.identity.pid,
      program: "QEMU",
      control: machine.monitor,
      console: new MachineConsole(consoleLog, join(machine.socketDir, SERIAL_SOCKET)),
      consoleLog,
    });
    this.#machine = machine;
    this.folderServers = machine.servers.map(({ pid }) => pid);
  }

  get monitor(): Monitor {
    return this.#machine.monitor;
  }

  /** The host's kernel bounds QEMU with its guest, QEMU what the guest does with its disk. Rejects as `resources` does. */
  async limit({ diskMbit, diskOps, ...ofHost }: ResourceLimits): Promise<void> {
    await this.resources.limit(ofHost);
    await this.monitor.limitDisk(this.#machine.rootDevice, { blk_mbit_limit: diskMbit, blk_ops_limit: diskOps });
  }

  /** Memory and disk under `tag`. `NOT_SUPPORTED` with shared folders, whose servers have a state of their own. */
  async save(tag: string): Promise<Snapshot> {
    if (this.#machine.servers.length === 0) return await this.monitor.save(tag);
    throw new AgentError(
      "NOT_SUPPORTED",
      "QEMU takes no snapshot, and runs nothing dry, of a machine with shared folders",
    );
  }

  protected override connect(signal: AbortSignal): Promise<GuestChannel> {
    const { socketDir, cid, token, guest, readyTimeoutMs } = this.#machine;
    const options = { token, connectTimeoutMs: readyTimeoutMs, signal };
    return cid === null
      ? guest.unix({ ...options, path: join(socketDir, AGENT_SOCKET), device: true })
      : guest.through({ ...options, open: vsockLink(cid) });
  }

  protected override endReason(): string | null {
    return this.monitor.endReason;
  }

  protected override async hindrance(): Promise<string | null> {
    return this.monitor.isShortOfRoom ? NO_ROOM : null;
  }

  /** Nobody shall take an empty directory of the guest for the folder of the host. */
  protected override async accept(channel: GuestChannel): Promise<void> {
    const { servers, isNew, workDir } = this.#machine;
    if (servers.length === 0 || !isNew || channel.features.has(FOLDERS_MOUNTED)) return;
    channel.close();
    const said = await lastLineOf(join(workDir, CONSOLE_LOG), FOLDER_COMPLAINT);
    throw new AgentError("LAUNCH_FAILED", said ?? "the guest agent of this image mounts no shared folders");
  }

  /** Whatever looks into a folder without its server waits for ever, in the guest's kernel. */
  protected override async uselessBecause(): Promise<string | null> {
    const served = await Promise.all(this.#machine.servers.map(isAlive));
    return served.every((alive) => alive) ? null : "the server of a shared folder has ended";
  }
}
