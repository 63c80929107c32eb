// How late the event loop is: a timer that should fire every few milliseconds notes its worst lateness. A long
// synchronous stretch anywhere in the agent shows here, in production as in tests. Time in which the loop's thread was
// ready and the kernel ran others is not counted: that is the machine's doing.
import { closeSync, openSync, readSync } from "node:fs";

const TICK_MS = 10;
const NS_PER_MS = 1_000_000;

export class LoopDelay {
  #maxMs = 0;
  #due = 0;
  #waitedMs = 0;
  #timer: ReturnType<typeof setInterval> | null = null;
  readonly #thread = new RunQueue();

  /** Call on the thread whose loop is meant. */
  start(): void {
    this.#thread.open();
    this.#due = performance.now() + TICK_MS;
    this.#waitedMs = this.#thread.waitedMs();
    this.#timer = setInterval(() => this.#tick(), TICK_MS);
    this.#timer.unref();
  }

  #tick(): void {
    const now = performance.now();
    const waitedMs = this.#thread.waitedMs();
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
    this.#thread.close();
  }
}

/** How long a thread has waited for a processor. The file stays open: it is read a hundred times a second. */
class RunQueue {
  readonly #text = Buffer.alloc(128);
  #file: number | null = null;

  /** From now on it is the calling thread that is meant. */
  open(): void {
    try {
      this.#file ??= openSync("/proc/thread-self/schedstat", "r");
    } catch {
      // A kernel that does not count this: nothing is subtracted.
      this.#file = null;
    }
  }

  /** Since the thread began (second field of proc's schedstat); 0 if untold. */
  waitedMs(): number {
    if (this.#file === null) return 0;
    const bytes = readSync(this.#file, this.#text, 0, this.#text.length, 0);
    return Number(this.#text.toString("latin1", 0, bytes).split(" ")[1]) / NS_PER_MS;
  }

  close(): void {
    if (this.#file !== null) closeSync(this.#file);
    this.#file = null;
  }
}
