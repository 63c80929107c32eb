// Events of this agent process: a gap-free sequence from 1 under an epoch, a ring of the newest for those who follow,
// and the durable log through the store. A follower that falls out of the ring is told how much it missed.
import type { EventRow, Store } from "../state/change.ts";
import { FollowedRing } from "./followed-ring.ts";

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
  readonly #ring = new FollowedRing<EventRow>(RING_SIZE);
  readonly #store: Pick<Store, "commit">;

  constructor(store: Pick<Store, "commit">) {
    this.#store = store;
  }

  /** Sequence of the newest event; 0 before the first. */
  get sequence(): number {
    return this.#ring.sequence;
  }

  /** Makes the event durable, then publishes it. Rejects as the store does, and then publishes nothing. */
  async append(row: EventRow): Promise<AgentEvent> {
    await this.#store.commit([{ append: "event", row }]);
    return this.publish(row);
  }

  /** Publishes an event: one that a commit has made durable with what it tells, or one that the log does not keep. */
  publish(row: EventRow): AgentEvent {
    return { ...row, sequence: this.#ring.publish(row), epoch: this.epoch };
  }

  /** Delivers the events after `after` and then those to come, until the signal aborts. */
  async *follow(signal: AbortSignal, after: number = this.sequence): AsyncGenerator<Delivery, void, void> {
    for await (const delivery of this.#ring.follow(signal, after)) {
      if ("missed" in delivery) yield delivery;
      else yield { event: { ...delivery.item, sequence: delivery.sequence, epoch: this.epoch } };
    }
  }
}
