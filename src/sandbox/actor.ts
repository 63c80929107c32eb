// The mailbox of one sandbox: lifecycle commands run one at a time in the order they came, and a command that repeats
// the last one waiting joins it. Commands, files and listings do not pass here; they read the sandbox's published state.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";

interface Waiting {
  readonly command: string;
  readonly outcome: Promise<unknown>;
}

export class Actor {
  #tail: Promise<unknown> = Promise.resolve();
  #last: Waiting | null = null;
  #depth = 0;

  /** Something runs or waits. */
  get isBusy(): boolean {
    return this.#depth > 0;
  }

  /** Runs `work` after every earlier command. Rejects with `SANDBOX_BUSY` when too many wait. */
  async run<T>(command: string, work: () => Promise<T>): Promise<T> {
    if (this.#depth >= limits.mailboxMax) throw new AgentError("SANDBOX_BUSY");
    return await this.tell(command, work);
  }

  /** Like `run` for what the agent itself must do; it is never refused. */
  tell<T>(command: string, work: () => Promise<T>): Promise<T> {
    this.#depth += 1;
    const outcome = this.#tail.then(work);
    const waiting: Waiting = { command, outcome };
    const settled = (): void => {
      this.#depth -= 1;
      if (this.#last === waiting) this.#last = null;
    };
    this.#tail = outcome.then(settled, settled);
    this.#last = waiting;
    return outcome;
  }

  /**
   * Like `run`, but shares the outcome of an equal command when that is the last one in the mailbox. One further back
   * is not shared: what came after it may undo it.
   */
  async join<T>(command: string, work: () => Promise<T>): Promise<T> {
    if (this.#last?.command === command) return (await this.#last.outcome) as T;
    return await this.run(command, work);
  }

  /** Resolves when every command that is in the mailbox now has ended, well or badly. */
  async idle(): Promise<void> {
    await this.#tail;
  }
}
