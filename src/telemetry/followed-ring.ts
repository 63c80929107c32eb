// A ring of the newest items under a gap-free sequence, for those who follow. Nothing is queued for a slow follower: it
// reads from the ring, and what has left the ring is reported as missed.

export type RingDelivery<Item> =
  | { readonly item: Item; readonly sequence: number }
  /** So many were overwritten before they could be delivered; the next item follows the gap. */
  | { readonly missed: number };

export class FollowedRing<Item> {
  readonly #items: Item[] = [];
  readonly #waiting = new Set<() => void>();
  #sequence = 0;

  constructor(private readonly size: number) {}

  /** Sequence of the newest item, from 1; 0 before the first. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Answers the item's sequence. */
  publish(item: Item): number {
    this.#items[this.#sequence % this.size] = item;
    this.#sequence += 1;
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
    return this.#sequence;
  }

  /** Delivers the items after `after` and then those to come, until the signal aborts. */
  async *follow(signal: AbortSignal, after: number): AsyncGenerator<RingDelivery<Item>, void, void> {
    let last = Math.min(Math.max(0, after), this.#sequence);
    while (!signal.aborted) {
      const oldest = Math.max(1, this.#sequence - this.size + 1);
      if (last + 1 < oldest) {
        yield { missed: oldest - last - 1 };
        last = oldest - 1;
        continue;
      }
      if (last === this.#sequence) {
        await this.#published(signal);
        continue;
      }
      const item = this.#items[last % this.size];
      if (item === undefined) throw new Error("the ring has a hole");
      last += 1;
      yield { item, sequence: last };
    }
  }

  /** Resolves at the next item or when the signal aborts. */
  #published(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const wake = (): void => {
        signal.removeEventListener("abort", wake);
        this.#waiting.delete(wake);
        resolve();
      };
      signal.addEventListener("abort", wake, { once: true });
      this.#waiting.add(wake);
    });
  }
}
