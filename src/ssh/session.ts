// A session channel: what a client asks for before it starts something, and the one thing that it starts, which is a shell,
// a command or file transfer.
import { limits } from "../config/limits.ts";
import type { TerminalSize } from "../contracts/executions.ts";
import type { Login } from "./authentication.ts";
import type { Channel } from "./channel.ts";
import { Command } from "./command.ts";
import type { ChannelRequest, ChannelUser } from "./connection.ts";
import type { SshDependencies } from "./dependencies.ts";
import { serveSftp } from "./sftp/server.ts";
import { signalNumber } from "./signals.ts";
import { takesVariable, type TerminalRequest, terminalRequest, terminalSize } from "./terminal-request.ts";

const INTERACTIVE_SHELL = "command -v bash >/dev/null 2>&1 && exec bash; exec sh";
/** Reads its commands from the input, and shows no prompt. */
const SCRIPT_SHELL = "command -v bash >/dev/null 2>&1 && exec bash -s; exec sh -s";

export interface SessionOptions {
  readonly dependencies: Pick<SshDependencies, "executions" | "files" | "telemetry">;
  readonly login: Login;
  readonly channel: Channel;
  /** Aborts when the agent stops. */
  readonly stopping: AbortSignal;
  /** Told what was started, for the audit trail. */
  readonly began: (what: "exec" | "shell" | "sftp") => void;
}

export class Session implements ChannelUser {
  readonly #options: SessionOptions;
  readonly #environment = new Map<string, string>();
  #terminal: TerminalRequest | null = null;
  #hasBegun = false;
  #command: Command | null = null;

  constructor(options: SessionOptions) {
    this.#options = options;
  }

  requested(request: ChannelRequest): void {
    request.answer(this.#perform(request));
  }

  /** Whether it is done. */
  #perform({ type, data }: ChannelRequest): boolean {
    switch (type) {
      case "pty-req":
        if (this.#hasBegun) return false;
        this.#terminal = terminalRequest(data);
        return true;
      case "env":
        return this.#setVariable(data);
      case "shell":
        return this.#begin("shell", () => this.#run(this.#terminal === null ? SCRIPT_SHELL : INTERACTIVE_SHELL));
      case "exec":
        return this.#begin("exec", () => this.#run(data as string));
      case "subsystem":
        return data === "sftp" && this.#begin("sftp", () => this.#transferFiles());
      case "window-change":
        return this.#resize(terminalSize(data));
      case "signal":
        return this.#signal(data as string);
      default:
        // Among them what would reach back into the client: its agent, its display.
        return false;
    }
  }

  #setVariable(data: unknown): boolean {
    const isFull = this.#environment.size >= limits.sshEnvironmentMaxEntries;
    if (this.#hasBegun || isFull || !takesVariable(data)) return false;
    this.#environment.set(data.name, data.value);
    return true;
  }

  #begin(what: "exec" | "shell" | "sftp", start: () => void): boolean {
    if (this.#hasBegun) return false;
    this.#hasBegun = true;
    this.#options.began(what);
    // The answer to the request goes out before anything of what was started.
    queueMicrotask(start);
    return true;
  }

  #run(command: string): void {
    const { dependencies, login, channel, stopping } = this.#options;
    const terminal = this.#terminal;
    if (terminal !== null) this.#environment.set("TERM", terminal.term);
    const env = Object.fromEntries(this.#environment);
    this.#command = new Command(
      { executions: dependencies.executions, login, channel, stopping },
      { command, env, ...(terminal !== null && { tty: terminal.size }) },
    );
    void this.#command.run();
  }

  #transferFiles(): void {
    const { dependencies, login, channel } = this.#options;
    serveSftp(channel, dependencies.files, login).catch((error: unknown) =>
      dependencies.telemetry.log.error({ err: error, sandbox: login.sandboxId }, "file transfer failed"),
    );
  }

  #resize(size: TerminalSize): boolean {
    if (this.#terminal === null) return false;
    this.#terminal = { ...this.#terminal, size };
    this.#command?.resize(size);
    return true;
  }

  #signal(name: string): boolean {
    const number = signalNumber(name);
    if (this.#command === null || number === undefined) return false;
    this.#command.signal(number);
    return true;
  }
}
