// The memory that large request bodies may take together. Who does not fit waits in line for a bounded time, so a burst
// of uploads is slowed down and never exhausts the host.
import { AgentError } from "../errors/agent-error.ts";

interface Waiter {
  readonly bytes: number;
  readonly admit: () => void;
}

export class BodyBudget {
  #freeBytes: number;
  readonly #line: Waiter[] = [];

  constructor(
    totalBytes: number,
    private readonly waitMs: number,
  ) {
    this.#freeBytes = totalBytes;
  }

  /** Resolves to the release of `bytes`, in order of arrival; rejects with `UPLOADS_BUSY` after the waiting time. */
  async reserve(bytes: number): Promise<() => void> {
    if (this.#line.length > 0 || bytes > this.#freeBytes) await this.#wait(bytes);
    else this.#freeBytes -= bytes;
    let released = false;
    return () => {
      if (released) return;
      released = true;
      this.#freeBytes += bytes;
      this.#admitNext();
    };
  }

  #wait(bytes: number): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#line.splice(this.#line.indexOf(waiter), 1);
        reject(new AgentError("UPLOADS_BUSY"));
        this.#admitNext();
      }, this.waitMs);
      const waiter: Waiter = {
        bytes,
        admit: () => {
          clearTimeout(timer);
          resolve();
        },
      };
      this.#line.push(waiter);
    });
  }

  #admitNext(): void {
    for (let first = this.#line[0]; first !== undefined && first.bytes <= this.#freeBytes; first = this.#line[0]) {
      this.#line.shift();
      this.#freeBytes -= first.bytes;
      first.admit();
    }
  }
}
