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
