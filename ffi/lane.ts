// A lane for jobs that the kernel does one at a time anyway, behind a lock that is sometimes held for long: they must not
// occupy all native threads while they wait for it, so that other jobs go on.

export class Lane {
  #running = 0;
  readonly #waiting: (() => void)[] = [];

  constructor(readonly width: number) {}

  /** Runs `job` when it is its turn; first come, first served. */
  async run<T>(job: () => Promise<T>): Promise<T> {
    if (this.#running < this.width) this.#running += 1;
    else await new Promise<void>((resolve) => this.#waiting.push(resolve));
    try {
      return await job();
    } finally {
      // The place is handed on, so that nobody comes in between.
      const next = this.#waiting.shift();
      if (next === undefined) this.#running -= 1;
      else next();
    }
  }
}

/**
 * Jobs that need the lock of this host's network configuration. Attaching a program holds it until every packet in the kernel
 * has come to its end. Two, so that the next one already waits in the kernel.
 */
export const networkLane = new Lane(2);
