// Time as the core sees it, so that tests own it. Deadlines that are stored are wall time; waits are monotonic.

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
