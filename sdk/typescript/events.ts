// The agent's events as they happen. A connection that breaks is made again behind the last event; whatever was lost all
// the same is told.
import { ApiError } from "./errors.ts";
import { bodyOf, MSGPACK_STREAM, readFrames, SILENCE_MS } from "./frames.ts";
import { isPassing, type RetryOptions, retried } from "./retry.ts";
import type { Transport } from "./transport.ts";
import type { Event } from "./types.ts";

export type EventFrame =
  | ({ readonly type: "event"; readonly sequence: number; readonly epoch: string } & Event)
  /** Events were lost before the next one; null: nobody knows how many. */
  | { readonly type: "lagged"; readonly missed: number | null };

export interface EventFilter {
  /** Id of a sandbox. */
  readonly vm?: string;
  /** Prefix of the event's name. */
  readonly event?: string;
}

type Frame =
  | EventFrame
  | { readonly type: "following"; readonly sequence: number; readonly epoch: string }
  | { readonly type: "keep_alive" }
  | { readonly type: "error"; readonly code: string; readonly message: string };

/** Follows events from now on, until the signal aborts. Throws `ApiError`, or `UnreachableError` when the agent stays away. */
export async function* followEvents(
  transport: Transport,
  filter: EventFilter = {},
  options: RetryOptions = {},
): AsyncGenerator<EventFrame, void, void> {
  const { signal } = options;
  let position: { readonly epoch: string; readonly after: number } | undefined;
  while (!signal?.aborted) {
    const query = { ...filter, ...position };
    const response = await retried(options, () =>
      transport.request("GET", "/v1/events/stream", { query, accept: MSGPACK_STREAM, signal }),
    );
    try {
      for await (const frame of readFrames<Frame>(bodyOf(response), SILENCE_MS)) {
        if (frame.type === "error") throw new ApiError(0, frame.code, frame.message);
        if (frame.type === "event" || frame.type === "following") {
          position = { epoch: frame.epoch, after: frame.sequence };
        }
        if (frame.type === "event" || frame.type === "lagged") yield frame;
      }
    } catch (error) {
      if (error instanceof ApiError && !isPassing(error)) throw error;
    }
  }
}
