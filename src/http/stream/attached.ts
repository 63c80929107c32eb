// The streams that are attached now: how many each token has, and that all of them end when the server does.
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller } from "../../sandbox/operations.ts";

/** A stream's place among those of its token. */
export interface Place {
  /** Called with the reason when the server ends the stream; at most once, and not after `leave`. */
  onInterrupt(interrupt: (reason: AgentError) => void): void;
  /** Gives the place back; more than once does no harm. */
  leave(): void;
}

export class AttachedStreams {
  readonly #perToken = new Map<string, number>();
  readonly #interrupts = new Map<symbol, (reason: AgentError) => void>();
  #isDraining = false;

  constructor(private readonly perTokenMax: number) {}

  /** Takes a place for one stream of the caller's token. Throws `STREAMS_EXHAUSTED` or `SHUTTING_DOWN`. */
  take(caller: Caller): Place {
    if (this.#isDraining) throw new AgentError("SHUTTING_DOWN");
    const token = caller.token ?? "";
    const count = this.#perToken.get(token) ?? 0;
    if (count >= this.perTokenMax) {
      throw new AgentError("STREAMS_EXHAUSTED", undefined, { details: { limit: this.perTokenMax } });
    }
    this.#perToken.set(token, count + 1);
    const place = Symbol();
    let isTaken = true;
    return {
      onInterrupt: (interrupt) => {
        if (!isTaken) return;
        this.#interrupts.set(place, interrupt);
        if (this.#isDraining) interrupt(new AgentError("SHUTTING_DOWN"));
      },
      leave: () => {
        if (!isTaken) return;
        isTaken = false;
        this.#interrupts.delete(place);
        this.#release(token);
      },
    };
  }

  /** Ends every stream, and refuses others from now on. */
  drain(): void {
    this.#isDraining = true;
    for (const interrupt of [...this.#interrupts.values()]) interrupt(new AgentError("SHUTTING_DOWN"));
  }

  #release(token: string): void {
    const rest = (this.#perToken.get(token) ?? 1) - 1;
    if (rest === 0) this.#perToken.delete(token);
    else this.#perToken.set(token, rest);
  }
}
