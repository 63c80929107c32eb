// What the output of one sandbox may take on the host's disk. When it is used up, the output of executions that are over
// goes first, the oldest before the others; only then do rings stop growing.

export class RingBudget {
  #usedBytes = 0;
  readonly #maxBytes: number;
  readonly #makeRoom: () => boolean;

  /** `makeRoom` gives some of it back, or answers false when there is nothing to give. */
  constructor(maxBytes: number, makeRoom: () => boolean) {
    this.#maxBytes = maxBytes;
    this.#makeRoom = makeRoom;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** True when the bytes were there to be taken. */
  take(bytes: number): boolean {
    while (this.#usedBytes + bytes > this.#maxBytes) {
      if (!this.#makeRoom()) return false;
    }
    this.#usedBytes += bytes;
    return true;
  }

  /** For rings that must exist whatever is used: the least ring of a new output, and those found after a restart. */
  takeAlways(bytes: number): void {
    if (!this.take(bytes)) this.#usedBytes += bytes;
  }

  give(bytes: number): void {
    this.#usedBytes -= bytes;
  }
}
