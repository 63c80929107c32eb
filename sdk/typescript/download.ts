// A file on its way from a sandbox: asked for by range, so that a broken connection costs nothing but the time.
import { ApiError } from "./errors.ts";
import { bodyOf } from "./frames.ts";
import { isPassing, Patience, Pause, retried } from "./retry.ts";
import type { ReadOptions } from "./files.ts";
import type { Query, Transport } from "./transport.ts";

/** What a part is of. */
interface Part {
  readonly begin: number;
  /** Behind the last byte of this part. */
  readonly end: number;
  readonly size: number;
  readonly modified: string | null;
}

/**
 * The bytes of a file. Throws `ApiError`: what a read may, and `FILE_CHANGED` when another file was there after a broken
 * connection; `UnreachableError` when the agent stays away.
 */
export async function* downloaded(
  transport: Transport,
  path: string,
  query: Query,
  { offset = 0, length, ...options }: ReadOptions,
): AsyncGenerator<Uint8Array, void, void> {
  const { signal } = options;
  const last = length === undefined ? "" : offset + length - 1;
  const pause = new Pause(signal);
  const patience = new Patience(options.resumeMs);
  let at = offset;
  let before: Part | null = null;
  while (length !== 0) {
    // Always a range, because its answer says how long it is.
    const headers = { range: `bytes=${at}-${last}` };
    let response: Response;
    try {
      response = await retried(options, () =>
        transport.request("GET", path, { query, accept: "application/octet-stream", headers, signal }),
      );
    } catch (error) {
      // Nothing is there behind the last byte.
      if (before === null && error instanceof ApiError && error.code === "RANGE_NOT_SATISFIABLE") return;
      throw error;
    }
    const part = partOf(response);
    if (part.begin !== at) throw new ApiError(0, "REPLY_INVALID", "the answer is not the range that was asked for");
    if (before !== null && (before.size !== part.size || before.modified !== part.modified)) {
      throw new ApiError(0, "FILE_CHANGED", "the file changed while it was read");
    }
    before = part;
    const reader = bodyOf(response).getReader();
    const began = at;
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        at += next.value.length;
        if (at > part.end) throw new ApiError(0, "REPLY_INVALID", "the answer is longer than it says");
        yield next.value;
      }
    } catch (error) {
      if (signal?.aborted || (error instanceof ApiError && !isPassing(error))) throw error;
    } finally {
      reader.cancel().catch(() => {});
    }
    if (at === part.end) return;
    patience.count(at > began);
    if (at > began) pause.reset();
    await pause.wait();
  }
}

function partOf({ status, headers }: Response): Part {
  const match = /^bytes (\d+)-(\d+)\/(\d+)$/.exec(headers.get("content-range") ?? "");
  if (match === null) throw new ApiError(status, "REPLY_INVALID", "the answer to a range does not say which");
  const [begin, last, size] = match.slice(1).map(Number) as [number, number, number];
  return { begin, end: last + 1, size, modified: headers.get("last-modified") };
}
