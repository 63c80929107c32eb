// How late the event loop is: a timer that should fire every few milliseconds notes its worst lateness. A long
// synchronous stretch anywhere in the agent shows here, in production as in tests. Time in which the loop's thread was
// ready and the kernel ran others is not counted: that is the machine's doing.
import { readFileSync } from "node:fs";

const TICK_MS = 10;
const NS_PER_MS = 1_000_000;

export class LoopDelay {
  #maxMs = 0;
  #due = 0;
  #waitedMs = 0;
  #timer: ReturnType<typeof setInterval> | null = null;

  /** Call on the thread whose loop is meant. */
  start(): void {
    this.#due = performance.now() + TICK_MS;
    this.#waitedMs = runQueueWaitMs();
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#timer.unref();
  }

  #tick(): void {
    const now = performance.now();
    const waitedMs = runQueueWaitMs();
    this.#maxMs = Math.max(this.#maxMs, now - this.#due - (waitedMs - this.#waitedMs));
    this.#waitedMs = waitedMs;
    this.#due = now + TICK_MS;
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

/** Time that this thread has waited for a processor since it began (second field of proc's schedstat), 0 if untold. */
function runQueueWaitMs(): number {
  try {
    return Number(readFileSync("/proc/thread-self/schedstat", "latin1").split(" ")[1]) / NS_PER_MS;
  } catch {
    return 0;
  }
}
