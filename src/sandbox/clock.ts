// Time as the core sees it, so that tests own it. Deadlines that are stored are wall time; waits are monotonic.
import { AgentError } from "../errors/agent-error.ts";

export interface Clock {
  nowUnixMs(): number;
  /** Resolves after `ms` of monotonic time. */
  sleep(ms: number): Promise<void>;
}

export const systemClock: Clock = {
  nowUnixMs: () => Date.now(),
  sleep: (ms) => Bun.sleep(ms),
};

/** Resolves when what is under way in this turn of the event loop has been done: for work that nobody waits for. */
export function nextTurn(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Settles like `work`, or rejects with `DEADLINE_EXCEEDED` after `ms`. What was started goes on and is ignored then. */
export async function withDeadline<T>(work: Promise<T>, ms: number, what: string): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const expired = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new AgentError("DEADLINE_EXCEEDED", `${what} took longer than ${ms} ms`)), ms);
  });
  try {
    return await Promise.race([work, expired]);
  } finally {
    clearTimeout(timer);
  }
}
