// A file on its way from a sandbox: asked for by range, so that a broken connection costs nothing but the time.
import { ApiError } from "./errors.ts";
import { isPassing, Pause, retried } from "./retry.ts";
import type { ReadOptions } from "./files.ts";
import type { Query, Transport } from "./transport.ts";

interface Version {
  readonly size: string | null;
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
  const end = length === undefined ? undefined : offset + length;
  const pause = new Pause(signal);
  let at = offset;
  let version: Version | null = null;
  while (end === undefined || at < end) {
    const isWhole = at === 0 && end === undefined;
    const headers = { range: isWhole ? undefined : `bytes=${at}-${end === undefined ? "" : end - 1}` };
    let response: Response;
    try {
      response = await retried(options, () =>
        transport.request("GET", path, { query, accept: "application/octet-stream", headers, signal }),
      );
    } catch (error) {
      // Nothing is there behind the last byte.
      if (error instanceof ApiError && error.code === "RANGE_NOT_SATISFIABLE") return;
      throw error;
    }
    version = sameVersion(version, response);
    const reader = (response.body as ReadableStream<Uint8Array>).getReader();
    const wanted = Number(response.headers.get("content-length"));
    const begin = at;
    try {
      for (let next = await reader.read(); !next.done; next = await reader.read()) {
        at += next.value.length;
        yield next.value;
      }
    } catch (error) {
      if (signal?.aborted || (error instanceof ApiError && !isPassing(error))) throw error;
    } finally {
      reader.cancel().catch(() => {});
    }
    if (at - begin === wanted) return;
    await pause.wait();
  }
}

function sameVersion(before: Version | null, { headers }: Response): Version {
  const size = headers.get("content-range")?.split("/")[1] ?? headers.get("content-length");
  const now = { size, modified: headers.get("last-modified") };
  if (before !== null && (before.size !== now.size || before.modified !== now.modified)) {
    throw new ApiError(0, "FILE_CHANGED", "the file changed while it was read");
  }
  return now;
}
