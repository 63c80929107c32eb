// One attached reader of an execution: what was written from its offsets on, then what is written, then the end. It
// asks for each frame, so a reader that stalls costs nothing but its place in the ring.
import { limits } from "../../config/limits.ts";
import type { OutputOffsets } from "../../contracts/executions.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import type { ExecutionFrame, ExecutionReader } from "./operations.ts";
import type { Output } from "./output.ts";

/** What a reader sees of its execution. */
export interface ReadableExecution {
  readonly stdout: Output;
  readonly stderr: Output;
  readonly tty: boolean;
  /** Raised with everything that a reader may wait for. */
  readonly version: number;
  /** The last frame, once what is there to be read is all that belongs to it. */
  readonly last: ExecutionFrame | null;
  /** Why readers have to go now, whatever they have read. */
  readonly dismissal: AgentError | null;
  /** Resolves when `version` has changed, or when the reader has left. */
  changed(reader: OutputReader): Promise<void>;
  /** The reader has come further. */
  advanced(reader: OutputReader): void;
  left(reader: OutputReader): void;
}

export class OutputReader implements ExecutionReader {
  readonly #execution: ReadableExecution;
  readonly #signal: AbortSignal;
  readonly #leave = (): void => this.#over();
  readonly #isBorrowing: boolean;
  #stdout: number;
  #stderr: number;
  #done = false;
  /** To be called when what the last frame has borrowed is not looked at any more. */
  #giveBack: (() => void) | null = null;

  constructor(execution: ReadableExecution, from: OutputOffsets, signal: AbortSignal, isBorrowing = false) {
    this.#execution = execution;
    this.#isBorrowing = isBorrowing;
    this.#signal = signal;
    this.#stdout = from.stdout;
    this.#stderr = from.stderr;
    signal.addEventListener("abort", this.#leave, { once: true });
    if (signal.aborted) this.#done = true;
  }

  /** The bytes that come next. */
  get offsets(): OutputOffsets {
    return { stdout: this.#stdout, stderr: this.#stderr };
  }

  /** True once nothing more will come. */
  get done(): boolean {
    return this.#done;
  }

  async next(): Promise<ExecutionFrame | null> {
    this.#giveBack?.();
    this.#giveBack = null;
    try {
      return await this.#next();
    } catch (error) {
      // What a reader is to be told that has to go comes before what that has done to it.
      return this.#end(errorFrame(this.#execution.dismissal ?? asAgentError(error)));
    }
  }

  async #next(): Promise<ExecutionFrame | null> {
    const execution = this.#execution;
    while (!this.#done) {
      if (execution.dismissal !== null) return this.#end(errorFrame(execution.dismissal));
      // Before looking at the output, so that whatever comes meanwhile is looked at in another round.
      const { version, last } = execution;
      const frame = (await this.#take("stdout")) ?? (await this.#take("stderr"));
      if (this.#done) return null;
      if (frame !== null) {
        execution.advanced(this);
        return frame;
      }
      if (last !== null) return this.#end(last);
      if (execution.version === version) await execution.changed(this);
    }
    return null;
  }

  async #take(channel: "stdout" | "stderr"): Promise<ExecutionFrame | null> {
    const offset = channel === "stdout" ? this.#stdout : this.#stderr;
    const found = await this.#execution[channel].read(offset, limits.executionReadBytes, this.#isBorrowing);
    if (found === null) return null;
    this.#giveBack = found.done;
    const next = found.offset + found.data.length;
    if (channel === "stdout") this.#stdout = next;
    else this.#stderr = next;
    const named = channel === "stdout" && this.#execution.tty ? "pty" : channel;
    return { type: "output", channel: named, offset: found.offset, data: found.data };
  }

  #end(frame: ExecutionFrame): ExecutionFrame | null {
    if (this.#done) return null;
    this.#over();
    return frame;
  }

  #over(): void {
    if (this.#done) return;
    this.#done = true;
    this.#signal.removeEventListener("abort", this.#leave);
    this.#execution.left(this);
  }
}

function errorFrame({ code, message }: AgentError): ExecutionFrame {
  return { type: "error", code, message };
}
