// One running virtual machine on the engine: what is asked of it over its control, and the way to its guest agent.
import { join } from "node:path";
import type { ThreadMachine } from "../../ffi/engine/machine.ts";
import type { MemoryUse, ProcessIdentity, ResourceLimits, Snapshot } from "../../src/contracts/backend.ts";
import type { GuestChannel, GuestConnector } from "../../src/contracts/channel.ts";
import { limits } from "../../src/config/limits.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { MachineInstance, NO_ROOM } from "../host/machine-instance.ts";
import { type GroupResources, memoryOf } from "../host/resources.ts";
import { MachineConsole } from "../host/serial-console.ts";
import { CONSOLE_LOG, SERIAL_SOCKET, VSOCK_SOCKET } from "./boot-config.ts";
import type { Control } from "./control.ts";
import { GUEST_AGENT_PORT, guestLink } from "./link.ts";
import type { OpenFiles } from "./snapshot-files.ts";
import { openSnapshot, saveSnapshot } from "./snapshots.ts";

export const PROGRAM = "the hypervisor";
/** For a guest to shut down whose agent ends; what is beyond it ends without being asked. */
const LEAVE_BUDGET_MS = 2_000;

/** How the hypervisor ends when its guest does; 0 is also its end when the host asks for it. */
const REASONS: Readonly<Record<number, string>> = {
  0: "the guest powered off",
  20: "the guest asked for a reset, which ends its machine",
  21: "the guest crashed",
};

export interface FluxVmMachine {
  readonly identity: ProcessIdentity;
  /** The process in the jail, which has the guest's memory; without a jail the same. */
  readonly inner: ProcessIdentity;
  readonly control: Control;
  readonly socketDir: string;
  readonly instanceDir: string;
  /** What the hypervisor complains of. */
  readonly processLog: string;
  /** In a jail the process outside of it keeps the logs within their bound. */
  readonly boundsLogs: boolean;
  readonly token: string;
  /** How long the guest agent may take to answer. */
  readonly readyTimeoutMs: number;
  readonly guest: GuestConnector;
  /** Null without control groups. */
  readonly resources: GroupResources | null;
  readonly isNew: boolean;
  /** Resolves when this agent's own child ended; absent for an adopted machine. */
  readonly exited?: Promise<number | null>;
  /** Where it runs on threads of this agent: what ends it. */
  readonly threads?: ThreadMachine;
}

export class FluxVmInstance extends MachineInstance {
  readonly #machine: FluxVmMachine;
  readonly #power: Power;
  /** Why it can only be ended, if so. */
  #useless: string | null = null;

  constructor(machine: FluxVmMachine) {
    const consoleLog = join(machine.instanceDir, CONSOLE_LOG);
    const power = new Power(machine.control);
    super({
      ...machine,
      visiblePid: machine.inner.pid,
      program: PROGRAM,
      control: power,
      console: new MachineConsole(consoleLog, join(machine.socketDir, SERIAL_SOCKET)),
      consoleLog,
    });
    this.#machine = machine;
    this.#power = power;
  }

  /** Of the process that has the guest's memory. */
  async memory(): Promise<MemoryUse> {
    const { inner, threads } = this.#machine;
    if (threads === undefined) return await memoryOf(inner);
    throw new AgentError("CAPABILITY_MISSING", "a machine on threads of the agent has no memory of its own to count", {
      details: { capability: "jail" },
    });
  }

  protected override async forceEnd(): Promise<void> {
    const { threads } = this.#machine;
    if (threads === undefined) await super.forceEnd();
    else threads.end();
  }

  /** What runs on threads of this agent would end with it in any case: now its guest has written what it held of its disk. */
  override async detach(): Promise<void> {
    const { threads } = this.#machine;
    if (threads !== undefined) await this.endUnwatched(LEAVE_BUDGET_MS).catch(() => threads.end());
    await super.detach();
    await threads?.ended;
  }

  async freeze(): Promise<void> {
    await this.#machine.control.ask("pause");
  }

  async resume(): Promise<void> {
    await this.#machine.control.ask("resume");
  }

  /** The host's kernel bounds the engine with its guest, the engine what the guest does with its disk. */
  async limit({ diskMbit, diskOps, ...ofHost }: ResourceLimits): Promise<void> {
    if (Object.values(ofHost).some((limit) => limit !== undefined)) await this.resources.limit(ofHost);
    const disk: JsonObject = {
      ...(diskMbit === undefined ? {} : { blk_mbit_limit: diskMbit }),
      ...(diskOps === undefined ? {} : { blk_ops_limit: diskOps }),
    };
    if (Object.keys(disk).length > 0) await this.#machine.control.ask("limit_disk", disk);
  }

  /** Memory and disk under `tag`, in the volume. The machine is as before afterwards: running or frozen. */
  async save(volumeDir: string, tag: string): Promise<Snapshot> {
    return await saveSnapshot(volumeDir, tag, (files) => this.#askWith("snapshot_save", files));
  }

  /** Puts memory and disk back. The machine runs afterwards, and its guest knows of no connection. */
  async restore(volumeDir: string, tag: string): Promise<void> {
    await using files = await openSnapshot(volumeDir, tag);
    try {
      await this.#askWith("snapshot_restore", files);
    } catch (error) {
      await this.#lookAfterFailure();
      throw error;
    }
    this.forgetChannel();
    if ((await this.#machine.control.lifecycle()) === "paused") await this.resume();
  }

  /** What was put back half-way can only end. */
  async #lookAfterFailure(): Promise<void> {
    const lifecycle = await this.#machine.control.lifecycle().catch(() => null);
    if (lifecycle === "stopped") this.#useless = "a restore failed half-way";
  }

  protected override async uselessBecause(): Promise<string | null> {
    return this.#useless;
  }

  async #askWith(action: string, { descriptors: files }: OpenFiles): Promise<void> {
    await this.#machine.control.ask(action, {}, { timeoutMs: limits.snapshotTimeoutMs, files });
  }

  protected override connect(signal: AbortSignal): Promise<GuestChannel> {
    const { guest, socketDir, token, readyTimeoutMs } = this.#machine;
    const open = guestLink(join(socketDir, VSOCK_SOCKET), GUEST_AGENT_PORT);
    return guest.through({ open, token, connectTimeoutMs: readyTimeoutMs, signal });
  }

  protected override async hindrance(): Promise<string | null> {
    return (await this.#machine.control.waitsForRoom().catch(() => false)) ? NO_ROOM : null;
  }

  protected override endReason(status: number | null | undefined): string | null {
    if (this.#power.isAskedToEnd && (status === 0 || status === undefined)) return "stopped";
    if (status === null) return `${PROGRAM} was killed`;
    return status === undefined ? null : (REASONS[status] ?? null);
  }
}

/** What a stop asks of the machine. */
class Power {
  #isAskedToEnd = false;

  constructor(private readonly control: Control) {}

  get closed(): Promise<void> {
    return this.control.closed;
  }

  get isAskedToEnd(): boolean {
    return this.#isAskedToEnd;
  }

  async pressPower(): Promise<void> {
    await this.control.ask("power_button");
  }

  async quit(): Promise<void> {
    this.#isAskedToEnd = true;
    await this.control.ask("shutdown");
  }

  close(): void {
    this.control.close();
  }
}
