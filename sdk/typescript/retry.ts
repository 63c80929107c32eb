// What is tried again while an agent is away, and for how long.
import { ApiError, UnreachableError } from "./errors.ts";

export interface RetryOptions {
  /** How long to try again when the agent cannot be reached; 30 s by default. */
  readonly resumeMs?: number;
  /** Ends every call and stream on this side. */
  readonly signal?: AbortSignal;
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
  for (let pauseMs = PAUSE_MIN_MS; ; pauseMs = Math.min(2 * pauseMs, PAUSE_MAX_MS)) {
    try {
      return await call();
    } catch (error) {
      if (!isPassing(error) || signal?.aborted || performance.now() + pauseMs > deadlineMs) throw error;
      await Bun.sleep(pauseMs);
    }
  }
}
