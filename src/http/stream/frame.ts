// What a stream of frames is to those who feed one: the frames, and the source that a response draws them from.

export type FrameValue =
  null | boolean | number | string | Uint8Array | readonly FrameValue[] | { readonly [key: string]: FrameValue };

/** One frame. Integers beyond 2^53 are not used; bytes are allowed at the top level only. */
export interface Frame {
  readonly type: string;
  readonly [key: string]: FrameValue;
}

/** The frames that say how a stream ended; no other follows. */
export const LAST_FRAME_TYPES: ReadonlySet<string> = new Set(["exited", "error"]);

/** Where the frames of one response come from. `next` is called again only after it has answered. */
export interface FrameSource {
  /** The next frame, null after the last; not asked after one of `LAST_FRAME_TYPES`. What it rejects with becomes the stream's `error` frame, its last. */
  next(): Promise<Frame | null>;
  /** The reader has left, or the stream is over; called once. A `next` that waits need not answer any more. */
  close(): void;
}
