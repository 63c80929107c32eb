// Numbers that look random and are the same for the same seed.

export class Random {
  #state: number;

  constructor(seed: number) {
    this.#state = seed >>> 0;
  }

  /** 0 to 2^32 − 1. */
  word(): number {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let mixed = this.#state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (mixed ^ (mixed >>> 14)) >>> 0;
  }

  /** 0 to `end` − 1. */
  below(end: number): number {
    return this.word() % end;
  }

  between(first: number, last: number): number {
    return first + this.below(last - first + 1);
  }

  /** True once in so many times, on average. */
  once(inSoMany: number): boolean {
    return this.below(inSoMany) === 0;
  }

  of<Thing>(things: readonly Thing[]): Thing {
    return things[this.below(things.length)] as Thing;
  }

  bytes(length: number): Uint8Array {
    return Uint8Array.from({ length }, () => this.below(256));
  }

  /** Each of them or not. */
  some<Thing>(things: readonly Thing[], inSoMany = 2): Thing[] {
    return things.filter(() => this.once(inSoMany));
  }
}
