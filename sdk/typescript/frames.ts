// Reads the frames of a stream: msgpack maps, each behind its length as four bytes, the highest first.
import { Unpackr } from "msgpackr";
import { ApiError } from "./errors.ts";
import type { Execution as ExecutionState } from "./types.ts";

export interface OutputFrame {
  readonly type: "output";
  readonly channel: "stdout" | "stderr" | "pty";
  /** Bytes of this channel before `data`. A jump says that the bytes between are lost. */
  readonly offset: number;
  readonly data: Uint8Array;
}

export interface ExitedFrame {
  readonly type: "exited";
  /** Exactly one of the two is there. */
  readonly exit_code?: number;
  readonly signal?: number;
  readonly timed_out: boolean;
  /** Something that the command left behind still holds its output. */
  readonly output_open: boolean;
}

export type Frame =
  | { readonly type: "started"; readonly execution: ExecutionState }
  | OutputFrame
  | ExitedFrame
  | { readonly type: "keep_alive" }
  | { readonly type: "error"; readonly code: string; readonly message: string };

export const MSGPACK_STREAM = "application/vnd.fluxvm.stream+msgpack";

/** A stream says every 15 s that it is still there. */
export const SILENCE_MS = 45_000;

const LENGTH_BYTES = 4;
const FRAME_MAX_BYTES = 16 * 1024 * 1024;
const unpacker = new Unpackr({ useRecords: false, int64AsType: "number" });

/** The stream broke where no frame said how it ended. */
export class BrokenStreamError extends Error {
  override readonly name = "BrokenStreamError";
}

/**
 * The frames of a body. Throws `BrokenStreamError` when it breaks off within a frame, or is silent for longer than
 * `silenceMs`, and `ApiError` (`STREAM_INVALID`) for what is no frame. Leaving the loop ends the stream.
 */
export async function* readFrames<F extends { readonly type: string }>(
  body: ReadableStream<Uint8Array>,
  silenceMs: number,
): AsyncGenerator<F, void, void> {
  const reader = body.getReader();
  const queue = new ByteQueue();
  let wanted = LENGTH_BYTES;
  try {
    for (;;) {
      const chunk = await withinMs(reader.read(), silenceMs);
      if (chunk.done) break;
      queue.push(chunk.value!);
      while (queue.length >= wanted) {
        if (wanted === LENGTH_BYTES) {
          wanted += queue.peekLength();
          if (wanted > FRAME_MAX_BYTES) throw invalid("a frame is longer than any may be");
          continue;
        }
        const frame = queue.take(wanted).subarray(LENGTH_BYTES);
        wanted = LENGTH_BYTES;
        yield unpackFrame<F>(frame);
      }
    }
    if (queue.length > 0) throw new BrokenStreamError("the stream ended within a frame");
  } finally {
    // Of a connection that is gone already, this rejects.
    reader.cancel().catch(() => {});
  }
}

/** A frame without its length. Throws `ApiError` (`STREAM_INVALID`). */
export function unpackFrame<F extends { readonly type: string }>(bytes: Uint8Array): F {
  let frame: { readonly type?: unknown } | null;
  try {
    frame = unpacker.unpack(bytes);
  } catch {
    throw invalid("a frame is not msgpack");
  }
  if (typeof frame?.type !== "string") throw invalid("a frame has no type");
  return frame as F;
}

/**
 * Where the output goes on behind `frame`, when everything before `from` has come already. Throws `ApiError`
 * (`STREAM_INVALID`) for bytes that would come twice.
 */
export function endOf({ offset, data }: OutputFrame, from: number): number {
  if (!(data instanceof Uint8Array)) throw invalid("output has no bytes");
  if (!Number.isSafeInteger(offset) || offset < from) throw invalid("output is not where it should go on");
  return offset + data.length;
}

function invalid(what: string): ApiError {
  return new ApiError(0, "STREAM_INVALID", `this is no agent, or a broken one: ${what}`);
}

/** The body of a response that streams. */
export function bodyOf(response: Response): ReadableStream<Uint8Array> {
  if (response.body === null) throw new BrokenStreamError("a stream without a body");
  return response.body as ReadableStream<Uint8Array>;
}

/** Pieces of a stream, joined only where a frame spans them. */
class ByteQueue {
  #pieces: Uint8Array[] = [];
  length = 0;

  push(piece: Uint8Array): void {
    if (piece.length === 0) return;
    this.#pieces.push(piece);
    this.length += piece.length;
  }

  /** The number in the first four bytes, which must be there. */
  peekLength(): number {
    const { buffer, byteOffset } = this.#joined(LENGTH_BYTES);
    return new DataView(buffer, byteOffset).getUint32(0);
  }

  /** Takes the first `count` bytes, which must be there. */
  take(count: number): Uint8Array {
    const joined = this.#joined(count);
    const rest = joined.subarray(count);
    if (rest.length > 0) this.#pieces[0] = rest;
    else this.#pieces.shift();
    this.length -= count;
    return joined.subarray(0, count);
  }

  /** Makes the first piece at least `count` long. */
  #joined(count: number): Uint8Array {
    const [first] = this.#pieces;
    if (first!.length >= count) return first!;
    const whole = new Uint8Array(this.length);
    let end = 0;
    for (const piece of this.#pieces) {
      whole.set(piece, end);
      end += piece.length;
    }
    this.#pieces = [whole];
    return whole;
  }
}

async function withinMs<T>(promise: Promise<T>, ms: number): Promise<T> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const silence = new Promise<never>((_, reject) => {
    timer = setTimeout(() => reject(new BrokenStreamError("the stream fell silent")), ms);
  });
  // When the silence was first, nobody waits for what the read says later.
  promise.catch(() => {});
  try {
    return await Promise.race([promise, silence]);
  } finally {
    clearTimeout(timer);
  }
}
