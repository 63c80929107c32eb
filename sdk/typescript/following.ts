// A stream that goes on when its connection breaks or the agent restarts: it is asked for again, and again, until its
// last frame has come or nobody wants it any more.
import { ApiError } from "./errors.ts";
import { bodyOf, MSGPACK_STREAM, readFrames, SILENCE_MS } from "./frames.ts";
import { isPassing, Patience, Pause, type RetryOptions, retried } from "./retry.ts";
import type { Query, Transport } from "./transport.ts";

/** The frames that every stream may have and that say nothing to its reader, or that it has failed. */
type Common =
  { readonly type: "keep_alive" } | { readonly type: "error"; readonly code: string; readonly message: string };

/** A connection that lived for less is followed by a pause. */
const BRIEF_MS = 1_000;

/**
 * The frames of the stream at `path`, from one connection after another; the reader leaves after the last one. `query` says
 * where each begins, and `first` is one that has begun. Throws `ApiError` for an error that ends the stream,
 * `UnreachableError` when the agent stays away or says nothing, and whatever the signal's abort makes of a connection.
 */
export async function* following<F extends { readonly type: string }>(
  transport: Transport,
  path: string,
  query: () => Query,
  options: RetryOptions,
  first: Response | null = null,
): AsyncGenerator<Exclude<F, Common>, void, void> {
  const { signal } = options;
  const pause = new Pause(signal);
  const patience = new Patience(options.resumeMs);
  let response = first;
  for (;;) {
    response ??= await retried(options, () =>
      transport.request("GET", path, { query: query(), accept: MSGPACK_STREAM, signal }),
    );
    const beganMs = performance.now();
    let hasBrought = false;
    try {
      for await (const frame of readFrames<F | Common>(bodyOf(response), SILENCE_MS)) {
        hasBrought = true;
        if (isError(frame)) throw new ApiError(0, frame.code, frame.message);
        if (frame.type !== "keep_alive") yield frame as Exclude<F, Common>;
      }
    } catch (error) {
      if (signal?.aborted || (error instanceof ApiError && !isPassing(error))) throw error;
    }
    response = null;
    patience.count(hasBrought);
    if (performance.now() - beganMs < BRIEF_MS) await pause.wait();
    else pause.reset();
  }
}

function isError(frame: { readonly type: string }): frame is Common & { readonly type: "error" } {
  return frame.type === "error";
}
