// A command in a sandbox at this end: what is typed or piped in goes to it, what it writes comes out, its exit status is
// this program's.
import { ApiError } from "../../sdk/typescript/errors.ts";
import type { Execution } from "../../sdk/typescript/execution.ts";
import type { ExitedFrame, OutputFrame } from "../../sdk/typescript/frames.ts";
import type { Terminal } from "./terminal.ts";

const TIMED_OUT = 124;
const SIGNAL_BASE = 128;
const NO_BYTES = new Uint8Array(0);

export interface SessionOptions {
  /** One line of JSON a frame instead of the bytes. */
  readonly isJson?: boolean;
  /** What is sent of a piece of input; null ends the session. */
  readonly filter?: (piece: Uint8Array) => Uint8Array | null;
  /** `piped`: its end closes the command's. `typed`: a terminal has no such end. `none`: stdin is left alone. */
  readonly input: "piped" | "typed" | "none";
}

/** Both ends of an execution; `leave` ends this one. */
export class Session {
  readonly #left = new AbortController();

  constructor(
    private readonly terminal: Terminal,
    private readonly options: SessionOptions,
  ) {}

  /** Aborts when the session is over on this side; for the calls of its execution. */
  get signal(): AbortSignal {
    return this.#left.signal;
  }

  leave(): void {
    this.#left.abort();
  }

  /** Resolves with the exit status of the command, null after `leave`. Rejects as the execution's frames do. */
  async run(execution: Execution): Promise<number | null> {
    const input = this.#sendInput(execution);
    const failedInput = new Promise<never>((_, reject) => input.catch(reject));
    try {
      return await Promise.race([this.#showOutput(execution), failedInput]);
    } catch (error) {
      if (this.signal.aborted) return null;
      throw error;
    } finally {
      this.leave();
    }
  }

  async #showOutput(execution: Execution): Promise<number> {
    const ends = { stdout: 0, stderr: 0, pty: 0 };
    for await (const frame of execution.frames()) {
      if (this.options.isJson === true) await this.terminal.out(`${jsonLine(frame)}\n`);
      if (frame.type === "exited") return exitStatus(frame);
      const { channel, offset, data } = frame;
      const lost = offset - ends[channel];
      ends[channel] = offset + data.length;
      if (this.options.isJson === true) continue;
      if (lost > 0) await this.terminal.err(`fluxctl: ${lost} bytes of ${channel} are lost\n`);
      await (channel === "stderr" ? this.terminal.err(data) : this.terminal.out(data));
    }
    throw new ApiError(0, "STREAM_INVALID", "the stream ended without an exit");
  }

  async #sendInput(execution: Execution): Promise<void> {
    const { filter = (piece) => piece, input } = this.options;
    if (input === "none") return;
    try {
      await this.terminal.keyboard.read(async (piece) => {
        const bytes = filter(piece);
        if (bytes === null) this.leave();
        else if (bytes.length > 0) await execution.writeStdin(bytes, false, this.signal);
      }, this.signal);
      if (input === "piped" && !this.signal.aborted) await execution.writeStdin(NO_BYTES, true, this.signal);
    } catch (error) {
      // A command may close its input or end before it has read everything; how it ended is in its exit.
      const isRefused = error instanceof ApiError && ["EXECUTION_EXITED", "STDIN_CLOSED"].includes(error.code);
      if (!isRefused && !this.signal.aborted) throw error;
    }
  }
}

function jsonLine(frame: OutputFrame | ExitedFrame): string {
  if (frame.type === "exited") return JSON.stringify(frame);
  const { data, ...rest } = frame;
  return JSON.stringify({ ...rest, data_base64: data.toBase64() });
}

/** As a shell says it; a process can exit with 0 to 255 only. */
function exitStatus({ exit_code, signal, timed_out }: ExitedFrame): number {
  if (timed_out) return TIMED_OUT;
  const status = exit_code ?? SIGNAL_BASE + (signal ?? 0);
  return Number.isInteger(status) && status >= 0 && status <= 255 ? status : 255;
}
