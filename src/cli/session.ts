// A command in a sandbox at this end: what is typed or piped in goes to it, what it writes comes out, its exit status is
// this program's.
import { ApiError } from "../../sdk/typescript/errors.ts";
import type { Execution } from "../../sdk/typescript/execution.ts";
import { exitStatus, Output } from "./output.ts";
import type { Terminal } from "./terminal.ts";

const NO_BYTES = new Uint8Array(0);
/** So much may be typed ahead of a far side that does not take it. */
const TYPED_MAX_BYTES = 1024 * 1024;

export interface SessionOptions {
  /** One line of JSON a frame instead of the bytes. */
  readonly isJson?: boolean;
  /** What is sent of a piece of input; null ends the session. */
  readonly filter?: (piece: Uint8Array) => Uint8Array | null;
  /**
   * `piped`: its end closes the command's, and it is read as fast as the command reads. `typed`: a terminal has no such
   * end, and is read whatever the far side does, so that one can always leave. `none`: stdin is left alone.
   */
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
    const output = new Output(this.terminal, this.options.isJson === true);
    for await (const frame of execution.frames()) {
      await output.show(frame);
      if (frame.type === "exited") return exitStatus(frame);
    }
    throw new ApiError(0, "STREAM_INVALID", "the stream ended without an exit");
  }

  async #sendInput(execution: Execution): Promise<void> {
    const { filter = (piece) => piece, input } = this.options;
    if (input === "none") return;
    const send = (bytes: Uint8Array, eof = false) => execution.writeStdin(bytes, eof, this.signal);
    const { promise: failed, reject } = Promise.withResolvers<never>();
    const typed = input === "typed" ? new TypedAhead(send, reject) : null;
    const reading = this.terminal.keyboard.read(async (piece) => {
      const bytes = filter(piece);
      if (bytes === null) this.leave();
      else if (bytes.length > 0) await (typed === null ? send(bytes) : typed.take(bytes));
    }, this.signal);
    try {
      await Promise.race([reading, failed]);
      if (input === "piped" && !this.signal.aborted) await send(NO_BYTES, true);
    } catch (error) {
      // A command may close its input or end before it has read everything; how it ended is in its exit.
      const isRefused = error instanceof ApiError && ["EXECUTION_EXITED", "STDIN_CLOSED"].includes(error.code);
      if (!isRefused && !this.signal.aborted) throw error;
    }
  }
}

/** Bytes that wait to be sent while the next are typed. */
class TypedAhead {
  #waiting: Uint8Array[] = [];
  #length = 0;
  #sending: Promise<void> | null = null;

  /** `fail` hears of the first bytes that could not be sent. */
  constructor(
    private readonly send: (bytes: Uint8Array) => Promise<void>,
    private readonly fail: (error: unknown) => void,
  ) {}

  /** Resolves when more may be typed. */
  async take(bytes: Uint8Array): Promise<void> {
    this.#waiting.push(bytes);
    this.#length += bytes.length;
    this.#sending ??= this.#sendAll().catch(this.fail);
    if (this.#length >= TYPED_MAX_BYTES) await this.#sending;
  }

  async #sendAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const bytes = Buffer.concat(this.#waiting);
      this.#waiting = [];
      this.#length = 0;
      await this.send(bytes);
    }
    this.#sending = null;
  }
}
