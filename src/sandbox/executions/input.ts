// The input of one execution. Writers take turns, so that each sees what those before it left; the guest takes every
// byte once, whatever is sent again.
import { limits } from "../../config/limits.ts";
import type { GuestExecutions } from "../../contracts/executions.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { HeldExecution } from "./execution.ts";
import type { StdinInput, StdinStatus } from "./operations.ts";

const EMPTY = new Uint8Array(0);

export class Stdin {
  readonly #execution: HeldExecution;
  readonly #guest: () => Promise<GuestExecutions>;
  /** Resolves when everybody who came before is through. */
  #turn: Promise<void> = Promise.resolve();
  #writers = 0;

  constructor(execution: HeldExecution, guest: () => Promise<GuestExecutions>) {
    this.#execution = execution;
    this.#guest = guest;
  }

  /**
   * Resolves when the guest has taken the input, also when it had before. Rejects with `BAD_REQUEST` (the end of a
   * terminal, or a writer that has left), `EXECUTION_EXITED` or `STDIN_CLOSED` for new bytes that nobody takes any more,
   * `STDIN_GAP`, or `SANDBOX_BUSY` when too many wait for their turn.
   */
  async write(input: StdinInput): Promise<StdinStatus> {
    if (this.#writers >= limits.stdinWritersMax) {
      throw new AgentError("SANDBOX_BUSY", "too many writers wait for this execution to read");
    }
    this.#writers += 1;
    const before = this.#turn;
    const over = Promise.withResolvers<void>();
    this.#turn = before.then(() => over.promise);
    try {
      await untilLeft(before, input.signal);
      return await this.#write(input);
    } catch (error) {
      if (input.signal?.aborted !== true) throw error;
      this.#askHowMuch();
      throw left();
    } finally {
      this.#writers -= 1;
      over.resolve();
    }
  }

  async #write({ offset, data, eof, signal }: StdinInput): Promise<StdinStatus> {
    const execution = this.#execution;
    if (eof && execution.tty)
      throw new AgentError("BAD_REQUEST", "the input of a terminal has no end; send its end-of-file character");
    this.#check(offset, data);
    if (!execution.running) return execution.input;
    const guest = await this.#guest();
    const known = execution.input.bytesWritten;
    let sent = Math.max(0, Math.min(data.length, known - offset));
    // Always at least one message where there is something to be asked: the end, or whether this is a gap.
    for (let first = true; first || sent < data.length; first = false) {
      const piece = data.subarray(sent, sent + limits.stdinPieceMaxBytes);
      const last = sent + piece.length === data.length;
      if (piece.length === 0 && !eof && offset <= known) break;
      const reply = await guest.writeStdin(
        execution.id,
        offset + sent,
        piece.length === 0 ? EMPTY : piece,
        eof && last,
        signal,
      );
      execution.inputTaken({ bytesWritten: reply.accepted, closed: reply.closed });
      if (reply.gap) throw gap(reply.accepted);
      // The process has closed its end.
      if (reply.closed && reply.accepted < offset + sent + piece.length) throw new AgentError("STDIN_CLOSED");
      sent += piece.length;
    }
    return execution.input;
  }

  /** Whether an offset lies beyond what was taken is for the guest to say: of a writer that left, more may have been. */
  #check(offset: number, data: Uint8Array): void {
    const { running, input } = this.#execution;
    if (!Number.isSafeInteger(offset) || offset < 0) throw new AgentError("BAD_REQUEST", "offset is a number from 0");
    const isNew = offset + data.length > input.bytesWritten;
    // Who was not answered sends again what may have made the process exit.
    if (!running && isNew) throw new AgentError("EXECUTION_EXITED");
    if (!input.closed) return;
    if (offset > input.bytesWritten) throw gap(input.bytesWritten);
    if (isNew) throw new AgentError("STDIN_CLOSED");
  }

  /** What a writer that left has got in is not known until the guest is asked, or somebody writes. */
  #askHowMuch(): void {
    const { id, input } = this.#execution;
    this.#guest()
      .then((guest) => guest.writeStdin(id, input.bytesWritten, EMPTY, false))
      .then(({ accepted, closed }) => this.#execution.inputTaken({ bytesWritten: accepted, closed }))
      .catch(() => undefined);
  }
}

/** Rejects when the signal aborts before the promise, which never rejects, has resolved. */
async function untilLeft(promise: Promise<void>, signal: AbortSignal | undefined): Promise<void> {
  if (signal === undefined) return await promise;
  const { promise: gone, reject } = Promise.withResolvers<never>();
  const leave = (): void => reject(left());
  if (signal.aborted) throw left();
  signal.addEventListener("abort", leave, { once: true });
  try {
    await Promise.race([promise, gone]);
  } finally {
    signal.removeEventListener("abort", leave);
  }
}

function left(): AgentError {
  return new AgentError("BAD_REQUEST", "the writer has left");
}

function gap(accepted: number): AgentError {
  return new AgentError("STDIN_GAP", undefined, { details: { accepted } });
}
