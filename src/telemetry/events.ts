// Events of this agent process: a gap-free sequence from 1 under an epoch, a ring of the newest for those who follow,
// and the durable log through the store. A follower that falls out of the ring is told how much it missed.
import type { EventRow, Store } from "../state/change.ts";

const RING_SIZE = 256;

export interface AgentEvent extends EventRow {
  /** Contiguous from 1 within an epoch. */
  readonly sequence: number;
  readonly epoch: string;
}

export type Delivery =
  | { readonly event: AgentEvent }
  /** `missed` events were overwritten before they could be delivered; the next event follows the gap. */
  | { readonly missed: number };

export class EventBus {
  /** One for each start of the agent. */
  readonly epoch: string = crypto.randomUUID();
  readonly #store: Pick<Store, "commit">;
  readonly #ring: AgentEvent[] = [];
  readonly #waiting = new Set<() => void>();
  #sequence = 0;

  constructor(store: Pick<Store, "commit">) {
    this.#store = store;
  }

  /** Sequence of the newest event; 0 before the first. */
  get sequence(): number {
    return this.#sequence;
  }

  /** Makes the event durable, then publishes it. Rejects as the store does, and then publishes nothing. */
  async append(row: EventRow): Promise<AgentEvent> {
    await this.#store.commit([{ append: "event", row }]);
    return this.publish(row);
  }

  /** Publishes an event: one that a commit has made durable with what it tells, or one that the log does not keep. */
  publish(row: EventRow): AgentEvent {
    const event: AgentEvent = { ...row, sequence: ++this.#sequence, epoch: this.epoch };
    this.#ring[(event.sequence - 1) % RING_SIZE] = event;
    for (const wake of this.#waiting) wake();
    this.#waiting.clear();
    return event;
  }

  /**
   * Delivers the events after `after` and then those to come, until the signal aborts. Nothing is queued for a slow
   * follower: it reads from the ring, and what has left the ring is reported as missed.
   */
  async *follow(signal: AbortSignal, after: number = this.#sequence): AsyncGenerator<Delivery, void, void> {
    let last = Math.min(Math.max(0, after), this.#sequence);
    while (!signal.aborted) {
      const oldest = Math.max(1, this.#sequence - RING_SIZE + 1);
      if (last + 1 < oldest) {
        yield { missed: oldest - last - 1 };
        last = oldest - 1;
        continue;
      }
      if (last === this.#sequence) {
        await this.#published(signal);
        continue;
      }
      const event = this.#ring[last % RING_SIZE];
      if (event === undefined) throw new Error("the event ring has a hole");
      last = event.sequence;
      yield { event };
    }
  }

  /** Resolves at the next event or when the signal aborts. */
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
