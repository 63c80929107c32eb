// The events that one stream follows: those of its filter, and a mark wherever some were lost.
import type { AgentEvent, Delivery, EventBus } from "../../telemetry/events.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { eventReply } from "./reply.ts";

/** What there is to follow. */
export type EventFeed = Pick<EventBus, "epoch" | "sequence" | "follow">;

export interface EventFilter {
  /** Null sees everything; a tenant sees its own. */
  readonly tenant: string | null;
  readonly sandboxId?: string;
  readonly actionPrefix?: string;
  readonly sinceUnixMs?: number;
}

/** The last event that the client has seen. */
export interface EventPosition {
  readonly epoch: string;
  readonly sequence: number;
}

export class EventFrames implements FrameSource {
  readonly #abort = new AbortController();
  readonly #deliveries: AsyncGenerator<Delivery, void, void>;
  readonly #pending: Frame[] = [];

  /** Without `after` it begins with the next event. */
  constructor(
    private readonly feed: EventFeed,
    private readonly filter: EventFilter,
    after: EventPosition | null,
  ) {
    const { epoch } = feed;
    // Another epoch is another life of the agent: what was missed of it cannot be counted.
    if (after !== null && after.epoch !== epoch) this.#pending.push({ type: "lagged", epoch, missed: null });
    const sequence = after === null ? feed.sequence : after.epoch === epoch ? after.sequence : 0;
    this.#pending.push({ type: "following", epoch, sequence });
    this.#deliveries = feed.follow(this.#abort.signal, sequence);
  }

  async next(): Promise<Frame | null> {
    const pending = this.#pending.shift();
    if (pending !== undefined) return pending;
    for (;;) {
      const { value, done } = await this.#deliveries.next();
      if (done === true || value === undefined) return null;
      if ("missed" in value) return this.#lagged(value.missed);
      if (this.#isWanted(value.event)) return { type: "event", ...eventReply(value.event), ...position(value.event) };
    }
  }

  close(): void {
    this.#abort.abort();
  }

  /** How many were lost says nothing where not all were wanted, and would tell a tenant about the others. */
  #lagged(missed: number): Frame {
    const { tenant, sandboxId, actionPrefix, sinceUnixMs } = this.filter;
    const isFiltered = tenant !== null || sandboxId !== undefined || actionPrefix !== undefined;
    return { type: "lagged", epoch: this.feed.epoch, missed: isFiltered || sinceUnixMs !== undefined ? null : missed };
  }

  #isWanted(event: AgentEvent): boolean {
    const { tenant, sandboxId, actionPrefix = "", sinceUnixMs = 0 } = this.filter;
    if (tenant !== null && event.tenant !== tenant) return false;
    if (sandboxId !== undefined && event.sandboxId !== sandboxId) return false;
    return event.action.startsWith(actionPrefix) && event.atUnixMs >= sinceUnixMs;
  }
}

function position({ sequence, epoch }: AgentEvent): EventPosition {
  return { sequence, epoch };
}
