// The memory that large request bodies may take together. Who does not fit waits in line for a bounded time, so a burst
// of uploads is slowed down and never exhausts the host; one caller never holds more than half, so that its slow bodies
// are not in the way of others.
import { AgentError } from "../errors/agent-error.ts";

interface Waiter {
  readonly bytes: number;
  readonly holder: string;
  readonly admit: () => void;
}

export class BodyBudget {
  readonly #shareBytes: number;
  readonly #heldBytes = new Map<string, number>();
  readonly #line: Waiter[] = [];
  #freeBytes: number;

  constructor(
    totalBytes: number,
    private readonly waitMs: number,
  ) {
    this.#freeBytes = totalBytes;
    this.#shareBytes = totalBytes / 2;
  }

  /**
   * Resolves to the release of `bytes`, at most half of the budget, in order of arrival among those whose `holder` has
   * room; rejects with `UPLOADS_BUSY` after the waiting time.
   */
  async reserve(bytes: number, holder: string): Promise<() => void> {
    await this.#wait(bytes, holder);
    let released = false;
    return () => {
      if (released) return;
      released = true;
      this.#take(-bytes, holder);
      this.#admit();
    };
  }

  #wait(bytes: number, holder: string): Promise<void> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#line.splice(this.#line.indexOf(waiter), 1);
        reject(new AgentError("UPLOADS_BUSY"));
        this.#admit();
      }, this.waitMs);
      const waiter: Waiter = {
        bytes,
        holder,
        admit: () => {
          clearTimeout(timer);
          resolve();
        },
      };
      this.#line.push(waiter);
      this.#admit();
    });
  }

  /** Admits who fits in order of arrival; only those whose own holder is at its share are passed by. */
  #admit(): void {
    const full = new Set<string>();
    for (const waiter of [...this.#line]) {
      const { bytes, holder } = waiter;
      if ((this.#heldBytes.get(holder) ?? 0) + bytes > this.#shareBytes) full.add(holder);
      if (full.has(holder)) continue;
      if (bytes > this.#freeBytes) return;
      this.#line.splice(this.#line.indexOf(waiter), 1);
      this.#take(bytes, holder);
      waiter.admit();
    }
  }

  #take(bytes: number, holder: string): void {
    this.#freeBytes -= bytes;
    const heldBytes = (this.#heldBytes.get(holder) ?? 0) + bytes;
    if (heldBytes === 0) this.#heldBytes.delete(holder);
    else this.#heldBytes.set(holder, heldBytes);
  }
}
