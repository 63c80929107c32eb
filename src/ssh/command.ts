// A command of a session: an execution whose input and output are those of the channel. It is held up when the client reads
// slowly, holds the client up when it reads slowly itself, and ends with the channel.
import { limits } from "../config/limits.ts";
import type { TerminalSize } from "../contracts/executions.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type {
  ExecutionExit,
  ExecutionOperations,
  ExecutionReader,
  StartExecutionRequest,
} from "../sandbox/executions/operations.ts";
import type { Login } from "./authentication.ts";
import { type Channel, ChannelClosed } from "./channel.ts";
import { SIGHUP, signalName } from "./signals.ts";

const TIMED_OUT = 124;
const SIGNAL_BASE = 128;
/** What a client exits with when the far side failed. */
const FAILED = 255;
const END_OF_FILE = Uint8Array.of(4);
const NO_BYTES = new Uint8Array(0);

export type CommandRequest = Pick<StartExecutionRequest, "command" | "env" | "tty">;

export interface CommandOptions {
  readonly executions: ExecutionOperations;
  readonly login: Login;
  readonly channel: Channel;
  /** Aborts when the agent stops, which ends channels and no commands. */
  readonly stopping: AbortSignal;
}

export class Command {
  readonly id = `ssh-${crypto.randomUUID()}`;
  readonly #executions: ExecutionOperations;
  readonly #login: Login;
  readonly #channel: Channel;
  readonly #stopping: AbortSignal;
  readonly #request: CommandRequest;
  /** Ends the reader, which is the loss that kills the command when it runs. */
  readonly #leave = new AbortController();
  readonly #started = Promise.withResolvers<boolean>();
  #signalsWaiting = 0;
  #size: TerminalSize | null = null;

  constructor({ executions, login, channel, stopping }: CommandOptions, request: CommandRequest) {
    this.#executions = executions;
    this.#login = login;
    this.#channel = channel;
    this.#stopping = stopping;
    this.#request = request;
  }

  /** Starts the command, carries its bytes and closes the channel. Never rejects. */
  async run(): Promise<void> {
    try {
      const reader = await this.#start();
      this.#started.resolve(true);
      void this.#carryInput();
      const hangUp = (): void => void this.#hangUp();
      this.#channel.closed.addEventListener("abort", hangUp, { once: true });
      if (this.#channel.closed.aborted) hangUp();
      this.#tellExit(await this.#carryOutput(reader));
    } catch (error) {
      await this.#tellFailure(error);
    } finally {
      this.#started.resolve(false);
      this.#leave.abort();
      this.#channel.close();
    }
  }

  /** Sends a signal to the command's process group, once it runs. */
  signal(number: number): void {
    if (this.#signalsWaiting >= limits.sshSignalsWaitingMax) return;
    this.#signalsWaiting += 1;
    void this.#onceStarted(() => this.#sendSignal(number)).finally(() => (this.#signalsWaiting -= 1));
  }

  /** Changes the size of the terminal; of several sizes that wait, the last counts. */
  resize(size: TerminalSize): void {
    const isWaiting = this.#size !== null;
    this.#size = size;
    if (isWaiting) return;
    void this.#onceStarted(async () => {
      while (this.#size !== null) {
        const latest = this.#size;
        await this.#executions.resizeExecution(...this.#target, latest);
        if (this.#size === latest) this.#size = null;
      }
    }).finally(() => (this.#size = null));
  }

  get #target() {
    return [this.#login.caller, this.#login.sandboxId, this.id] as const;
  }

  async #start(): Promise<ExecutionReader> {
    const { caller, sandboxId } = this.#login;
    const rules = { id: this.id, stdin: true, overflow: "block", onDisconnect: "kill" } as const;
    await this.#executions.startExecution(caller, sandboxId, { ...this.#request, ...rules });
    return await this.#executions.attachExecution(...this.#target, {
      from: { stdout: 0, stderr: 0 },
      role: "starter",
      signal: this.#leave.signal,
    });
  }

  /** The command's output until its end; what comes for a client that is gone is passed over. */
  async #carryOutput(reader: ExecutionReader): Promise<ExecutionExit> {
    const ends = { stdout: 0, stderr: 0, pty: 0 };
    for (;;) {
      const frame = await reader.next();
      if (frame === null) throw new ChannelClosed();
      if (frame.type === "exited") return frame;
      if (frame.type === "error") throw new AgentError(frame.code, frame.message);
      const { channel, offset, data } = frame;
      const lost = offset - ends[channel];
      ends[channel] = offset + data.length;
      if (this.#channel.closed.aborted) continue;
      await this.#write(lost > 0 ? Buffer.from(`fluxvm: ${lost} bytes of ${channel} are lost\n`) : NO_BYTES, "stderr");
      await this.#write(data, channel === "stderr" ? "stderr" : "stdout");
    }
  }

  async #write(data: Uint8Array, stream: "stdout" | "stderr"): Promise<void> {
    try {
      await this.#channel.write(data, stream);
    } catch (error) {
      if (!(error instanceof ChannelClosed)) throw error;
    }
  }

  /** The channel's bytes to the command, and their end. The next are taken when the command has these. */
  async #carryInput(): Promise<void> {
    try {
      let offset = 0;
      for (;;) {
        const data = await this.#channel.read(limits.stdinPieceMaxBytes);
        if (data === null) break;
        await this.#executions.writeStdin(...this.#target, { offset, data, eof: false });
        offset += data.length;
      }
      const isTerminal = this.#request.tty !== undefined;
      if (isTerminal && this.#channel.closed.aborted) return;
      const end = isTerminal ? { data: END_OF_FILE, eof: false } : { data: NO_BYTES, eof: true };
      await this.#executions.writeStdin(...this.#target, { offset, ...end });
    } catch {
      // It reads no more, has ended, or cannot be reached, which its output tells; the rest of the input is for nobody.
      while ((await this.#channel.read(limits.stdinPieceMaxBytes)) !== null);
    }
  }

  /** The client is gone: the command hears it as on a lost line, and is killed when that does not end it. */
  async #hangUp(): Promise<void> {
    if (this.#stopping.aborted) return;
    const timer = setTimeout(() => this.#leave.abort(), limits.sshHangUpGraceMs);
    this.#leave.signal.addEventListener("abort", () => clearTimeout(timer), { once: true });
    await this.#sendSignal(SIGHUP);
  }

  async #onceStarted(act: () => Promise<unknown>): Promise<void> {
    if (!(await this.#started.promise)) return;
    // What comes too late for the command has no one to be told to.
    await act().catch(() => undefined);
  }

  async #sendSignal(number: number): Promise<void> {
    await this.#executions.signalExecution(...this.#target, number).catch(() => undefined);
  }

  #tellExit({ exitCode, signal, timedOut }: ExecutionExit): void {
    const name = signal === null ? undefined : signalName(signal);
    if (timedOut) this.#channel.exit(TIMED_OUT);
    else if (name !== undefined) this.#channel.exitBySignal(name);
    else this.#channel.exit(exitCode ?? SIGNAL_BASE + (signal ?? 0));
  }

  async #tellFailure(cause: unknown): Promise<void> {
    if (this.#channel.closed.aborted) return;
    const { code, message } = asAgentError(cause);
    await this.#write(Buffer.from(`fluxvm: ${failureText(code, message)}\r\n`), "stderr");
    this.#channel.exit(FAILED);
  }
}

function failureText(code: string, message: string): string {
  if (code === "CAPABILITY_MISSING") return `${message}; without a terminal (ssh -T) commands run all the same`;
  return message;
}
