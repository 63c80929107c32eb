// The agent's events: those that are kept, and those that happen. A connection that breaks is made again behind the last
// event; whatever was lost all the same is told.
import { following } from "./following.ts";
import type { CallOptions, RetryOptions } from "./retry.ts";
import type { Transport } from "./transport.ts";
import type { Event } from "./types.ts";

export type EventFrame =
  | ({ readonly type: "event" } & EventPosition & Event)
  /** Events were lost before the next one; null: nobody knows how many. */
  | { readonly type: "lagged"; readonly missed: number | null };

export interface EventPosition {
  /** One life of the agent. */
  readonly epoch: string;
  readonly sequence: number;
}

export interface EventFilter {
  /** Id of a sandbox. */
  readonly vm?: string;
  /** Prefix of the event's name. */
  readonly event?: string;
  /** RFC 3339; events at or after it. */
  readonly since?: string;
}

export interface FollowOptions extends RetryOptions {
  /** The last event that was seen; without it, it begins with the next one. */
  readonly after?: EventPosition;
}

type Frame = EventFrame | ({ readonly type: "following" } & EventPosition);

/** The newest events that are kept, oldest first; at most `limit`. */
export async function listEvents(
  transport: Transport,
  filter: EventFilter & { readonly limit?: number } = {},
  { signal }: CallOptions = {},
): Promise<readonly Event[]> {
  return (await transport.json<{ items: readonly Event[] }>("GET", "/v1/events", { query: { ...filter }, signal }))
    .items;
}

/** Follows events until the signal aborts. Throws `ApiError`, or `UnreachableError` when the agent stays away. */
export async function* followEvents(
  transport: Transport,
  filter: EventFilter = {},
  options: FollowOptions = {},
): AsyncGenerator<EventFrame, void, void> {
  let { after } = options;
  const query = () => ({ ...filter, ...(after && { epoch: after.epoch, after: after.sequence }) });
  for await (const frame of following<Frame>(transport, "/v1/events/stream", query, options)) {
    if (frame.type === "event" || frame.type === "following") after = { epoch: frame.epoch, sequence: frame.sequence };
    if (frame.type !== "following") yield frame;
  }
}
