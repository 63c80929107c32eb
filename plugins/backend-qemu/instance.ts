// One running virtual machine: its monitor, its guest channel, its console, and how it is told that it has ended.
import { join } from "node:path";
import type { Instance, InstanceEnd, ProcessIdentity, ResourceLimits, Snapshot } from "../../src/contracts/backend.ts";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { GroupResources } from "../host/resources.ts";
import { pause } from "../host/pause.ts";
import { isAlive, signal, waitGone } from "../host/process.ts";
import { AGENT_SOCKET, CONSOLE_LOG, SERIAL_SOCKET } from "./arguments.ts";
import { vsockLink } from "./channel.ts";
import { MachineConsole, trimLog } from "./console.ts";
import { complaintOf, lastLineOf } from "./log-tail.ts";
import type { Monitor } from "./monitor.ts";

const WATCH_INTERVAL_MS = 500;
const LOG_CHECK_EVERY = 20;
/** Of a stop's budget: for a guest agent that shuts down, then for a guest that obeys its power button; the rest kills. */
const ASK_SHARE = 0.6;
const POWER_SHARE = 0.25;
const QUIT_BUDGET_MS = 2_000;
const KILL_BUDGET_MS = 5_000;
/** What the guest agent says when every shared folder is mounted, and on the console when one is not. */
const FOLDERS_MOUNTED = "shared-folders";
const FOLDER_COMPLAINT = "shared folder ";

export interface MachineOptions {
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
  /** Whether it was launched by this agent, and what its guest agent has done so far is still to be seen. */
  readonly isNew: boolean;
  /** Resolves when this agent's own child ended; absent for an adopted machine. */
  readonly exited?: Promise<unknown>;
}

export class MachineInstance implements Instance {
  readonly identity: ProcessIdentity;
  readonly visiblePid: number;
  readonly enforcement = null;
  readonly ended: Promise<InstanceEnd>;
  readonly console: MachineConsole;
  readonly folderServers: readonly number[];
  readonly #options: MachineOptions;
  #channel: Promise<GuestChannel> | null = null;
  /** The channel once it is there. */
  #reached: GuestChannel | null = null;
  /** Aborted when there is nothing to reach any more, or nobody who wants to. */
  readonly #lettingGo = new AbortController();
  #watching = true;
  #gone = false;
  /** Why this agent ended the machine by itself, if it did. */
  #givenUp: string | null = null;

  constructor(options: MachineOptions) {
    this.#options = options;
    this.identity = options.identity;
    this.visiblePid = options.identity.pid;
    this.folderServers = options.servers.map(({ pid }) => pid);
    this.console = new MachineConsole(join(options.workDir, CONSOLE_LOG), join(options.socketDir, SERIAL_SOCKET));
    this.ended = this.#watch();
  }

  get monitor(): Monitor {
    return this.#options.monitor;
  }

  /** Throws `CAPABILITY_MISSING` on a host without control groups. */
  get resources(): GroupResources {
    const { resources } = this.#options;
    if (resources !== null) return resources;
    throw new AgentError("CAPABILITY_MISSING", "the agent has no control groups without root", {
      details: { capability: "cgroup" },
    });
  }

  /** The host's kernel bounds QEMU with its guest, QEMU what the guest does with its disk. Rejects as `resources` does. */
  async limit({ diskMbit, diskOps, ...ofHost }: ResourceLimits): Promise<void> {
    await this.resources.limit(ofHost);
    await this.monitor.limitDisk(this.#options.rootDevice, { blk_mbit_limit: diskMbit, blk_ops_limit: diskOps });
  }

  channel(): Promise<GuestChannel> {
    if (this.#gone) return Promise.reject(new AgentError("SANDBOX_GONE"));
    this.#channel ??= this.#connect().catch((error: unknown) => {
      this.#channel = null;
      throw error;
    });
    return this.#channel;
  }

  /** Waits for the guest agent as long as the machine lives. */
  async #connect(): Promise<GuestChannel> {
    const { socketDir, cid, token, guest, readyTimeoutMs } = this.#options;
    const gone = this.ended.then(({ reason }): never => {
      throw new AgentError("SANDBOX_GONE", `the virtual machine ended: ${reason}`);
    });
    const options = { token, connectTimeoutMs: readyTimeoutMs, signal: this.#lettingGo.signal };
    const connected =
      cid === null
        ? guest.unix({ ...options, path: join(socketDir, AGENT_SOCKET), device: true })
        : guest.through({ ...options, open: vsockLink(cid) });
    const reached = await Promise.race([connected, gone]).catch(async (error: unknown) => {
      throw await this.#withConsole(error);
    });
    await this.#assertFoldersMounted(reached);
    this.#reached = reached;
    return reached;
  }

  /** A machine that never answered is removed with its console, so the error has what that ended with. */
  async #withConsole(error: unknown): Promise<unknown> {
    const { isNew, workDir } = this.#options;
    if (!isNew || !(error instanceof AgentError) || error.code !== "GUEST_UNREACHABLE") return error;
    if (this.monitor.isShortOfRoom) {
      return new AgentError("GUEST_UNREACHABLE", `${error.message}; the host has no room for what it writes`, {
        cause: error,
      });
    }
    const said = await lastLineOf(join(workDir, CONSOLE_LOG));
    const console = said === null ? "its console is empty" : `its console ends with: ${said}`;
    return new AgentError("GUEST_UNREACHABLE", `${error.message}; ${console}`, { cause: error });
  }

  /** Nobody shall take an empty directory of the guest for the folder of the host. */
  async #assertFoldersMounted(channel: GuestChannel): Promise<void> {
    const { servers, isNew, workDir } = this.#options;
    if (servers.length === 0 || !isNew || channel.features.has(FOLDERS_MOUNTED)) return;
    channel.close();
    const said = await lastLineOf(join(workDir, CONSOLE_LOG), FOLDER_COMPLAINT);
    throw new AgentError("LAUNCH_FAILED", said ?? "the guest agent of this image mounts no shared folders");
  }

  /** Memory and disk under `tag`. `NOT_SUPPORTED` with shared folders, whose servers have a state of their own. */
  async save(tag: string): Promise<Snapshot> {
    if (this.#options.servers.length === 0) return await this.monitor.save(tag);
    throw new AgentError(
      "NOT_SUPPORTED",
      "QEMU takes no snapshot, and runs nothing dry, of a machine with shared folders",
    );
  }

  async stop(budgetMs: number): Promise<void> {
    const polite = await this.#stopPolitely(budgetMs);
    if (!polite) await this.#kill();
    if (this.#watching) await this.ended;
  }

  async #stopPolitely(budgetMs: number): Promise<boolean> {
    const askMs = budgetMs * ASK_SHARE;
    if (askMs >= 1 && (await this.#ask(askMs)) && (await this.#isGoneWithin(askMs))) return true;
    const powerMs = budgetMs * POWER_SHARE;
    const pressed = powerMs >= 1 && (await succeeds(this.monitor.pressPower()));
    return pressed && (await this.#isGoneWithin(powerMs));
  }

  async #kill(): Promise<void> {
    // Asked to end, QEMU writes what it holds of the disk.
    if ((await succeeds(this.monitor.quit())) && (await this.#isGoneWithin(QUIT_BUDGET_MS))) return;
    await signal(this.identity, "SIGKILL");
    if (await this.#isGoneWithin(KILL_BUDGET_MS)) return;
    throw new AgentError("DEADLINE_EXCEEDED", `QEMU ${this.identity.pid} did not end after SIGKILL`);
  }

  /** Asks a guest agent that was reached before; one that was not cannot be waited for. */
  async #ask(graceMs: number): Promise<boolean> {
    if (this.#reached === null) return false;
    return Promise.race([succeeds(this.#reached.shutdown(graceMs)), pause(graceMs).then(() => true)]);
  }

  #isGoneWithin(budgetMs: number): Promise<boolean> {
    const { exited } = this.#options;
    if (exited === undefined) return waitGone(this.identity, budgetMs);
    return Promise.race([exited.then(() => true), pause(budgetMs).then(() => false)]);
  }

  async detach(): Promise<void> {
    this.#watching = false;
    this.#letGo();
  }

  #letGo(): void {
    this.#lettingGo.abort();
    this.#reached?.close();
    this.#reached = null;
    this.#channel = null;
    this.monitor.close();
  }

  async #watch(): Promise<InstanceEnd> {
    const { exited, processLog } = this.#options;
    const over = exited?.then(() => true) ?? this.monitor.closed.then(() => false);
    for (let round = 0; ; round += 1) {
      const isOver = await Promise.race([over, pause(WATCH_INTERVAL_MS).then(() => null)]);
      if (!this.#watching) return new Promise<never>(() => {});
      if (isOver === true || (exited === undefined && !(await isAlive(this.identity)))) break;
      // A monitor that is closed while the process lives says nothing more; the process is looked at.
      if (isOver === false) await pause(WATCH_INTERVAL_MS);
      if (round % LOG_CHECK_EVERY === 0) await this.#trimLogs();
      await this.#giveUpWithoutServers();
    }
    this.#gone = true;
    const reason = this.#givenUp ?? this.monitor.endReason ?? (await complaintOf(processLog));
    this.#letGo();
    return { reason, atUnixMs: Date.now() };
  }

  /** Whatever looks into a folder without its server waits for ever, in the guest's kernel: that machine is ended. */
  async #giveUpWithoutServers(): Promise<void> {
    const isServed = async (): Promise<boolean> =>
      (await Promise.all(this.#options.servers.map(isAlive))).every((alive) => alive);
    if (this.#givenUp !== null || (await isServed())) return;
    // The servers of a machine that ends by itself end a moment before it is seen to have ended.
    await pause(WATCH_INTERVAL_MS);
    if (!this.#watching || this.monitor.endReason !== null || !(await isAlive(this.identity))) return;
    this.#givenUp = "the server of a shared folder has ended";
    await this.#kill().catch(() => undefined);
  }

  async #trimLogs(): Promise<void> {
    await this.console.trim().catch(() => undefined);
    await trimLog(this.#options.processLog).catch(() => undefined);
  }
}

async function succeeds(attempt: Promise<unknown>): Promise<boolean> {
  return attempt.then(
    () => true,
    () => false,
  );
}
