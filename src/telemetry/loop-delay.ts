// How late the event loop is: a timer that should fire every few milliseconds notes its worst lateness. A long
// synchronous stretch anywhere in the agent shows here, in production as in tests.

const TICK_MS = 10;

export class LoopDelay {
  #maxMs = 0;
  #due = 0;
  #timer: ReturnType<typeof setInterval> | null = null;

  start(): void {
    this.#due = performance.now() + TICK_MS;
    this.#timer = setInterval(() => {
      const now = performance.now();
      this.#maxMs = Math.max(this.#maxMs, now - this.#due);
      this.#due = now + TICK_MS;
    }, TICK_MS);
    this.#timer.unref();
  }

  /** Worst lateness in ms since the last call. */
  takeMaxMs(): number {
    const max = this.#maxMs;
    this.#maxMs = 0;
    return max;
  }

  stop(): void {
    if (this.#timer !== null) clearInterval(this.#timer);
    this.#timer = null;
  }
}
