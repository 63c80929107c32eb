// Gives other work its turn while a long listing is read.

const SLICE_MS = 4;

export class Pace {
  #deadlineMs = performance.now() + SLICE_MS;

  /** Whether the slice is used up. */
  get due(): boolean {
    return performance.now() >= this.#deadlineMs;
  }

  /** Lets the event loop go round when the slice is used up. */
  async turn(): Promise<void> {
    if (!this.due) return;
    await new Promise((resolve) => setImmediate(resolve));
    this.#deadlineMs = performance.now() + SLICE_MS;
  }
}
