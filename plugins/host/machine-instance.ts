// One running virtual machine, whatever runs it: its guest channel, its console, how it is stopped, and how it is told that
// it has ended. A backend says how its guest agent is reached and what it adds.
import type { Instance, InstanceEnd, ProcessIdentity } from "../../src/contracts/backend.ts";
import type { GuestChannel } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { complaintOf, lastLineOf } from "./log-tail.ts";
import { pause } from "./pause.ts";
import { isAlive, signal, waitGone } from "./process.ts";
import type { GroupResources } from "./resources.ts";
import { type MachineConsole, trimLog } from "./serial-console.ts";

const WATCH_INTERVAL_MS = 500;
const LOG_CHECK_EVERY = 20;
/** Of a stop's budget: for a guest agent that shuts down, then for a guest that obeys its power button; the rest kills. */
const ASK_SHARE = 0.6;
const POWER_SHARE = 0.25;
const QUIT_BUDGET_MS = 2_000;
const KILL_BUDGET_MS = 5_000;
/** What hinders a guest whose writes to its disk wait. */
export const NO_ROOM = "the host has no room for what it writes";

/** The way to the process that runs the machine. */
export interface MachineControl {
  /** Resolves when there is no way any more. */
  readonly closed: Promise<void>;
  pressPower(): Promise<void>;
  /** Asks the process to end, with what it holds of the disk written. */
  quit(): Promise<void>;
  /** Lets go of it; the machine stays. */
  close(): void;
}

export interface MachineParts {
  readonly identity: ProcessIdentity;
  /** What people are told as the machine's process. */
  readonly visiblePid: number;
  /** How errors call the program. */
  readonly program: string;
  readonly control: MachineControl;
  readonly console: MachineConsole;
  readonly consoleLog: string;
  /** What the program complains of. */
  readonly processLog: string;
  /** Whoever writes both logs keeps them within their bound; otherwise that is done here. */
  readonly boundsLogs?: boolean;
  /** Null without control groups. */
  readonly resources: GroupResources | null;
  /** Whether it was launched by this agent, and what its guest agent has done so far is still to be seen. */
  readonly isNew: boolean;
  /** Resolves when this agent's own child ended, with its status or null; absent for an adopted machine. */
  readonly exited?: Promise<number | null>;
}

export abstract class MachineInstance implements Instance {
  readonly identity: ProcessIdentity;
  readonly visiblePid: number;
  readonly enforcement = null;
  readonly ended: Promise<InstanceEnd>;
  readonly console: MachineConsole;
  readonly #parts: MachineParts;
  #channel: Promise<GuestChannel> | null = null;
  /** The channel once it is there. */
  #reached: GuestChannel | null = null;
  /** Aborted when there is nothing to reach any more, or nobody who wants to. */
  readonly #lettingGo = new AbortController();
  #watching = true;
  #gone = false;
  /** Why this agent ended the machine by itself, if it did. */
  #givenUp: string | null = null;

  constructor(parts: MachineParts) {
    this.#parts = parts;
    this.identity = parts.identity;
    this.visiblePid = parts.visiblePid;
    this.console = parts.console;
    this.ended = this.#watch();
  }

  /** Opens a channel to the guest agent, for as long as `signal` is not aborted. */
  protected abstract connect(signal: AbortSignal): Promise<GuestChannel>;

  /** Why the machine ended, when its program said so before `status`, or by it. */
  protected abstract endReason(status: number | null | undefined): string | null;

  /** Ends the machine whatever its program does; it may be gone a moment later. */
  protected async forceEnd(): Promise<void> {
    await signal(this.identity, "SIGKILL");
  }

  /** Rejects when what was reached is not what was wanted. */
  protected async accept(_channel: GuestChannel): Promise<void> {
    // Most machines are as they were asked for.
  }

  /** What else keeps a guest agent from answering, or null. */
  protected async hindrance(): Promise<string | null> {
    return null;
  }

  /** Why the machine is of no use any more, though it lives, or null. Asked twice a second. */
  protected async uselessBecause(): Promise<string | null> {
    return null;
  }

  /** Throws `CAPABILITY_MISSING` on a host without control groups. */
  get resources(): GroupResources {
    const { resources } = this.#parts;
    if (resources !== null) return resources;
    throw new AgentError("CAPABILITY_MISSING", "the agent has no control groups without root", {
      details: { capability: "cgroup" },
    });
  }

  channel(): Promise<GuestChannel> {
    if (this.#gone) return Promise.reject(new AgentError("SANDBOX_GONE"));
    this.#channel ??= this.#connect().catch((error: unknown) => {
      this.#channel = null;
      throw error;
    });
    return this.#channel;
  }

  /** The next one who asks for the channel gets a new one: the guest knows nothing of the old one any more. */
  protected forgetChannel(): void {
    this.#reached?.close();
    this.#reached = null;
    this.#channel = null;
  }

  /** Waits for the guest agent as long as the machine lives. */
  async #connect(): Promise<GuestChannel> {
    const gone = this.ended.then(({ reason }): never => {
      throw new AgentError("SANDBOX_GONE", `the virtual machine ended: ${reason}`);
    });
    const connected = this.connect(this.#lettingGo.signal);
    const reached = await Promise.race([connected, gone]).catch(async (error: unknown) => {
      throw await this.#withConsole(error);
    });
    await this.accept(reached);
    this.#reached = reached;
    return reached;
  }

  /** A machine that never answered is removed with its console, so the error has what that ended with. */
  async #withConsole(error: unknown): Promise<unknown> {
    const { isNew, consoleLog } = this.#parts;
    if (!isNew || !(error instanceof AgentError) || error.code !== "GUEST_UNREACHABLE") return error;
    const hindrance = await this.hindrance();
    if (hindrance !== null) {
      return new AgentError("GUEST_UNREACHABLE", `${error.message}; ${hindrance}`, { cause: error });
    }
    const said = await lastLineOf(consoleLog);
    const console = said === null ? "its console is empty" : `its console ends with: ${said}`;
    return new AgentError("GUEST_UNREACHABLE", `${error.message}; ${console}`, { cause: error });
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
    if (powerMs < 1) return false;
    return await this.#isGoneAfter(this.#parts.control.pressPower(), powerMs);
  }

  /** Whether it went within `budgetMs` of being asked to; one that does not even answer is not waited for any longer. */
  async #isGoneAfter(asked: Promise<unknown>, budgetMs: number): Promise<boolean> {
    const deadlineMs = performance.now() + budgetMs;
    const isAsked = await Promise.race([succeeds(asked), pause(budgetMs).then(() => false)]);
    return isAsked && (await this.#isGoneWithin(Math.max(1, deadlineMs - performance.now())));
  }

  async #kill(): Promise<void> {
    // Asked to end, the program writes what it holds of the disk.
    if (await this.#isGoneAfter(this.#parts.control.quit(), QUIT_BUDGET_MS)) return;
    await this.forceEnd();
    if (await this.#isGoneWithin(KILL_BUDGET_MS)) return;
    throw new AgentError("DEADLINE_EXCEEDED", `${this.#parts.program} ${this.identity.pid} did not end after SIGKILL`);
  }

  /** Asks a guest agent that was reached before; one that was not cannot be waited for. */
  async #ask(graceMs: number): Promise<boolean> {
    if (this.#reached === null) return false;
    return Promise.race([succeeds(this.#reached.shutdown(graceMs)), pause(graceMs).then(() => true)]);
  }

  #isGoneWithin(budgetMs: number): Promise<boolean> {
    const { exited } = this.#parts;
    if (exited === undefined) return waitGone(this.identity, budgetMs);
    return Promise.race([exited.then(() => true), pause(budgetMs).then(() => false)]);
  }

  /** Ends the machine as `stop` does, and tells nobody: whoever lets go of it finds that out by himself. */
  protected async endUnwatched(budgetMs: number): Promise<void> {
    this.#watching = false;
    await this.stop(budgetMs);
  }

  async detach(): Promise<void> {
    this.#watching = false;
    this.#letGo();
  }

  #letGo(): void {
    this.#lettingGo.abort();
    this.forgetChannel();
    this.#parts.control.close();
  }

  async #watch(): Promise<InstanceEnd> {
    const { exited, control, processLog, program } = this.#parts;
    let status: number | null | undefined;
    const left = exited?.then((with_) => {
      status = with_;
      return true;
    });
    const over = left ?? control.closed.then(() => false);
    for (let round = 0; ; round += 1) {
      const isOver = await Promise.race([over, pause(WATCH_INTERVAL_MS).then(() => null)]);
      if (!this.#watching) return new Promise<never>(() => {});
      if (isOver === true || (exited === undefined && !(await isAlive(this.identity)))) break;
      // A control that is closed while the process lives says nothing more; the process is looked at.
      if (isOver === false) await pause(WATCH_INTERVAL_MS);
      if (this.#parts.boundsLogs !== true && round % LOG_CHECK_EVERY === 0) await this.#trimLogs();
      await this.#giveUpUseless();
    }
    this.#gone = true;
    const reason = this.#givenUp ?? this.endReason(status) ?? (await complaintOf(processLog, program));
    this.#letGo();
    return { reason, atUnixMs: Date.now() };
  }

  async #giveUpUseless(): Promise<void> {
    if (this.#givenUp !== null) return;
    const reason = await this.uselessBecause();
    if (reason === null) return;
    // What ends with the machine ends a moment before the machine is seen to have ended.
    await pause(WATCH_INTERVAL_MS);
    if (!this.#watching || this.endReason(undefined) !== null || !(await isAlive(this.identity))) return;
    this.#givenUp = reason;
    await this.#kill().catch(() => undefined);
  }

  async #trimLogs(): Promise<void> {
    await this.console.trim().catch(() => undefined);
    await trimLog(this.#parts.processLog).catch(() => undefined);
  }
}

async function succeeds(attempt: Promise<unknown>): Promise<boolean> {
  return attempt.then(
    () => true,
    () => false,
  );
}
