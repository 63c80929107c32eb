// Work that is done in rounds, with a pause before each of them.

export class Rounds {
  #timer: ReturnType<typeof setTimeout> | null = null;
  #round: Promise<void> = Promise.resolve();
  #stopped = false;

  /** `work` never rejects. */
  constructor(
    private readonly pauseMs: number,
    private readonly work: () => Promise<void>,
  ) {}

  start(): void {
    if (this.#stopped) return;
    this.#timer = setTimeout(() => {
      this.#round = this.work().finally(() => this.start());
    }, this.pauseMs);
    this.#timer.unref();
  }

  /** Resolves when the round that runs, if any, is over; no other begins. */
  async stop(): Promise<void> {
    this.#stopped = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    await this.#round;
  }
}
