// Takes an execution's output from the guest: one attach that is opened again from where it was cut, and the
// acknowledgements that let the guest forget what is safe here.
import { limits } from "../../config/limits.ts";
import type { Loan } from "../../contracts/channel.ts";
import type { GuestExecution, GuestExecutions, OutputOffsets } from "../../contracts/executions.ts";
import { asAgentError, type AgentError } from "../../errors/agent-error.ts";
import type { Output } from "./output.ts";

export interface FeedHooks {
  /** The guest of the sandbox; rejects while there is none. */
  readonly guest: () => Promise<GuestExecutions>;
  /** The process has exited; what it wrote itself lies below `wrote`. */
  readonly exited: (state: GuestExecution, wrote: OutputOffsets) => void;
  /** The process has exited and all of its output is here. */
  readonly finished: (state: GuestExecution) => void;
  /** The guest does not know the execution. */
  readonly lost: (error: AgentError) => void;
}

export class Feed {
  readonly #id: string;
  readonly #stdout: Output;
  readonly #stderr: Output;
  readonly #hooks: FeedHooks;
  readonly #stop = new AbortController();
  #acknowledged = 0;
  #acknowledging = false;
  #acknowledgeTimer: Timer | null = null;

  constructor(id: string, stdout: Output, stderr: Output, hooks: FeedHooks) {
    this.#id = id;
    this.#stdout = stdout;
    this.#stderr = stderr;
    this.#hooks = hooks;
  }

  /** Resolves when everything was taken, or the execution is lost, or the feed was stopped. */
  async run(): Promise<void> {
    const { signal } = this.#stop;
    // An earlier agent process may have ended in between: where the guest has no room for more, nothing else would ever
    // be kept, and the process would be held up for good.
    this.kept();
    for (let pauseMs: number = limits.executionAttachPauseMinMs; !signal.aborted;) {
      const before = this.#received;
      try {
        const state = await this.#attach(signal);
        if (!signal.aborted) this.#hooks.finished(state);
        return;
      } catch (cause) {
        const error = asAgentError(cause);
        if (signal.aborted) return;
        if (error.code === "EXECUTION_NOT_FOUND") return this.#hooks.lost(error);
      }
      const progress = this.#received > before;
      pauseMs = progress ? limits.executionAttachPauseMinMs : Math.min(2 * pauseMs, limits.executionAttachPauseMaxMs);
      await pause(pauseMs, signal);
    }
  }

  stop(): void {
    this.#stop.abort();
    if (this.#acknowledgeTimer !== null) clearTimeout(this.#acknowledgeTimer);
    this.#acknowledgeTimer = null;
  }

  /** More of the output survives the agent than before. */
  kept(): void {
    const fresh = this.#kept - this.#acknowledged;
    if (fresh >= limits.executionAcknowledgeBytes) this.#acknowledge();
    else if (fresh > 0) this.#acknowledgeLater(limits.executionAcknowledgeMs);
  }

  #acknowledgeLater(afterMs: number): void {
    if (this.#stop.signal.aborted) return;
    this.#acknowledgeTimer ??= setTimeout(() => {
      this.#acknowledgeTimer = null;
      this.#acknowledge();
    }, afterMs);
  }

  async #attach(signal: AbortSignal): Promise<GuestExecution> {
    const guest = await this.#hooks.guest();
    // From what is on disk: what is in memory comes again and is dropped, but is granted back only once it is stored, so
    // a guest that cuts the connection again and again fills no memory.
    const from = { stdout: this.#stdout.storedEnd, stderr: this.#stderr.storedEnd };
    const sink = {
      output: (channel: "stdout" | "stderr", offset: number, data: Uint8Array, loan?: Loan) =>
        (channel === "stdout" ? this.#stdout : this.#stderr).append(offset, data, loan),
      exited: (state: GuestExecution, wrote: OutputOffsets) => this.#hooks.exited(state, wrote),
    };
    return await guest.attach(this.#id, from, sink, signal);
  }

  get #received(): number {
    return this.#stdout.window.end + this.#stderr.window.end;
  }

  get #kept(): number {
    return this.#stdout.keptEnd + this.#stderr.keptEnd;
  }

  /** One at a time. Where it fails it is said again later, because the guest may be waiting for it. */
  #acknowledge(): void {
    if (this.#acknowledging || this.#stop.signal.aborted) return;
    this.#acknowledging = true;
    const offsets = { stdout: this.#stdout.keptEnd, stderr: this.#stderr.keptEnd };
    this.#hooks
      .guest()
      .then((guest) => guest.acknowledge(this.#id, offsets))
      .then(
        () => {
          this.#acknowledged = offsets.stdout + offsets.stderr;
          this.#acknowledging = false;
          this.kept();
        },
        (error: unknown) => {
          this.#acknowledging = false;
          const isKnown = asAgentError(error).code !== "EXECUTION_NOT_FOUND";
          if (isKnown) this.#acknowledgeLater(limits.executionAttachPauseMaxMs);
        },
      );
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const over = (): void => {
      clearTimeout(timer);
      signal.removeEventListener("abort", over);
      resolve();
    };
    const timer = setTimeout(over, ms);
    signal.addEventListener("abort", over, { once: true });
  });
}
