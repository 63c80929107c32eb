// The input of one execution. Writers take turns, so that each sees what those before it left; the guest takes every
// byte once, whatever is sent again.
import { limits } from "../../config/limits.ts";
import type { GuestExecutions } from "../../contracts/executions.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { HeldExecution } from "./execution.ts";
import type { StdinStatus } from "./operations.ts";

export interface Input {
  readonly offset: number;
  readonly data: Uint8Array;
  readonly eof: boolean;
}

const EMPTY = new Uint8Array(0);

export class Stdin {
  readonly #execution: HeldExecution;
  readonly #guest: () => Promise<GuestExecutions>;
  #turn: Promise<unknown> = Promise.resolve();
  #writers = 0;

  constructor(execution: HeldExecution, guest: () => Promise<GuestExecutions>) {
    this.#execution = execution;
    this.#guest = guest;
  }

  /**
   * Resolves when the guest has taken the input. Rejects with `BAD_REQUEST` (the end of a terminal), `EXECUTION_EXITED`,
   * `STDIN_GAP`, `STDIN_CLOSED`, or `SANDBOX_BUSY` when too many wait for their turn.
   */
  async write(input: Input): Promise<StdinStatus> {
    if (this.#writers >= limits.stdinWritersMax) {
      throw new AgentError("SANDBOX_BUSY", "too many writers wait for this execution to read");
    }
    this.#writers += 1;
    const written = this.#turn.then(() => this.#write(input)).finally(() => (this.#writers -= 1));
    this.#turn = written.catch(() => undefined);
    return await written;
  }

  async #write({ offset, data, eof }: Input): Promise<StdinStatus> {
    const execution = this.#execution;
    if (eof && execution.tty)
      throw new AgentError("BAD_REQUEST", "the input of a terminal has no end; send its end-of-file character");
    this.#check(offset, data);
    const guest = await this.#guest();
    let sent = Math.max(0, Math.min(data.length, execution.input.bytesWritten - offset));
    // Always at least one message, which also asks for the end.
    for (let first = true; first || sent < data.length; first = false) {
      const piece = data.subarray(sent, sent + limits.stdinPieceMaxBytes);
      const last = sent + piece.length === data.length;
      if (piece.length === 0 && !eof) break;
      const reply = await guest.writeStdin(
        execution.id,
        offset + sent,
        piece.length === 0 ? EMPTY : piece,
        eof && last,
      );
      execution.inputTaken({ bytesWritten: reply.accepted, closed: reply.closed });
      if (reply.gap) throw gap(reply.accepted);
      // The process has closed its end.
      if (reply.closed && reply.accepted < offset + sent + piece.length) throw new AgentError("STDIN_CLOSED");
      sent += piece.length;
    }
    return execution.input;
  }

  #check(offset: number, data: Uint8Array): void {
    const { running, input } = this.#execution;
    if (!running) throw new AgentError("EXECUTION_EXITED");
    if (!Number.isSafeInteger(offset) || offset < 0) throw new AgentError("BAD_REQUEST", "offset is a number from 0");
    if (offset > input.bytesWritten) throw gap(input.bytesWritten);
    if (input.closed && offset + data.length > input.bytesWritten) throw new AgentError("STDIN_CLOSED");
  }
}

function gap(accepted: number): AgentError {
  return new AgentError("STDIN_GAP", undefined, { details: { accepted } });
}
