// What the output of one sandbox may take on the host's disk. When it is used up, the output of executions that are over
// goes first, the oldest before the others. Of those that run, none grows large at the cost of one that is small.
import { limits } from "../../config/limits.ts";

/** How rings grow. */
export interface RingSizes {
  /** The least ring, and the step by which it grows; a multiple of 72, of which a ninth is spare. */
  readonly stepBytes: number;
  /** What a whole ring keeps: what so many steps keep. */
  readonly keptMaxBytes: number;
}

export const RING_SIZES: RingSizes = { stepBytes: 144 * 1024, keptMaxBytes: limits.executionRingMaxBytes };
const MODEST_STEPS = 20;
/** The share of the whole that larger rings leave to executions that have yet to begin. */
const SPARED_SHARE = 8;

export interface Evictable {
  /** What executions take that are over and that nobody comes back to. */
  readonly bytes: () => number;
  /** What executions that run can count on and have not taken. */
  readonly reserved: () => number;
  /** Gives one up that takes something, and with it what it takes; false when there is none. */
  readonly evict: () => boolean;
}

export class RingBudget {
  #usedBytes = 0;
  readonly #maxBytes: number;
  readonly #evictable: Evictable;
  readonly sizes: RingSizes;

  constructor(maxBytes: number, evictable: Evictable, sizes: RingSizes = RING_SIZES) {
    this.#maxBytes = maxBytes;
    this.#evictable = evictable;
    this.sizes = sizes;
  }

  /** What every execution that runs can count on; more only where that leaves the others so much. */
  get modestBytes(): number {
    return MODEST_STEPS * this.sizes.stepBytes;
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  /** Bytes for a ring that has `sizeBytes`; true when they were there to be taken. */
  take(bytes: number, sizeBytes: number): boolean {
    if (sizeBytes >= this.modestBytes && !this.#isGenerous(bytes)) return false;
    while (this.#usedBytes + bytes > this.#maxBytes) {
      if (!this.#evictable.evict()) return false;
    }
    this.#usedBytes += bytes;
    return true;
  }

  /** For rings that must exist whatever is used: the least ring of a new output, and those found after a restart. */
  takeAlways(bytes: number): void {
    if (!this.take(bytes, 0)) this.#usedBytes += bytes;
  }

  give(bytes: number): void {
    this.#usedBytes -= bytes;
  }

  #isGenerous(bytes: number): boolean {
    const spoken = this.#usedBytes - this.#evictable.bytes() + this.#evictable.reserved();
    return spoken + bytes <= this.#maxBytes - this.#maxBytes / SPARED_SHARE;
  }
}
