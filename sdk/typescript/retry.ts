// What is tried again while an agent is away, and for how long.
import { ApiError, UnreachableError } from "./errors.ts";

export interface CallOptions {
  /** Ends the call, or the stream, on this side. */
  readonly signal?: AbortSignal;
}

export interface RetryOptions extends CallOptions {
  /** How long to try again when the agent cannot be reached; 30 s by default. */
  readonly resumeMs?: number;
}

const RESUME_MS = 30_000;
const PAUSE_MIN_MS = 50;
const PAUSE_MAX_MS = 2_000;

/** Whether the same call may work once the agent is back. */
export function isPassing(error: unknown): boolean {
  return error instanceof UnreachableError || (error instanceof ApiError && error.code === "SHUTTING_DOWN");
}

/** Tries again, with growing pauses, for as long as the agent is away. Everything that is retried may come twice. */
export async function retried<T>({ resumeMs = RESUME_MS, signal }: RetryOptions, call: () => Promise<T>): Promise<T> {
  const deadlineMs = performance.now() + resumeMs;
  for (const pause = new Pause(signal); ;) {
    try {
      return await call();
    } catch (error) {
      if (!isPassing(error) || signal?.aborted || performance.now() + pause.nextMs > deadlineMs) throw error;
      await pause.wait();
    }
  }
}

/** How long attempts may go on that succeed and yet bring nothing: no longer than an agent may be away. */
export class Patience {
  #fruitlessSinceMs: number | null = null;

  constructor(private readonly resumeMs: number = RESUME_MS) {}

  /** Counts an attempt. Throws `UnreachableError` when nothing has come of any for too long. */
  count(hasBrought: boolean): void {
    if (hasBrought) {
      this.#fruitlessSinceMs = null;
      return;
    }
    this.#fruitlessSinceMs ??= performance.now();
    if (performance.now() - this.#fruitlessSinceMs < this.resumeMs) return;
    throw new UnreachableError("every connection to the agent ends before anything has come over it");
  }
}

/** Pauses that grow. */
export class Pause {
  nextMs: number;

  constructor(
    private readonly signal: AbortSignal | undefined,
    private readonly firstMs = PAUSE_MIN_MS,
  ) {
    this.nextMs = firstMs;
  }

  /** Resolves after the pause, or when the signal aborts. */
  wait(): Promise<void> {
    const { signal } = this;
    return new Promise((resolve) => {
      const over = (): void => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", over);
        resolve();
      };
      const timer = setTimeout(over, this.nextMs);
      this.nextMs = Math.min(2 * this.nextMs, PAUSE_MAX_MS);
      signal?.addEventListener("abort", over);
      if (signal?.aborted) over();
    });
  }

  reset(): void {
    this.nextMs = this.firstMs;
  }
}
