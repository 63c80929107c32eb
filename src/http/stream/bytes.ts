// Raw bodies: a download that is read as fast as the client takes it, and an upload that is taken as fast as its reader.
import { limits } from "../../config/limits.ts";
import type { ByteSource } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { lastingResponse } from "./lasting.ts";

/** What an answer waits for that may still become an error: most of what small archives hold. */
const BEGINNING_BYTES = 256 * 1024;

/**
 * A response with the bytes of `source`. When the source fails, the connection is cut, never ended as if it were whole;
 * `failed` hears why, which no client can be told any more.
 */
export function bytesResponse(
  source: ByteSource,
  init: ResponseInit,
  failed: (error: unknown) => void = () => {},
): Response {
  const { promise: ended, resolve } = Promise.withResolvers<void>();
  const over = (): void => {
    source.close();
    resolve();
  };
  const body = new ReadableStream<Uint8Array>(
    {
      pull: async (controller) => {
        try {
          const bytes = await source.read();
          if (bytes !== null) return controller.enqueue(bytes);
          controller.close();
        } catch (error) {
          failed(error);
          controller.error(error);
        }
        over();
      },
      cancel: over,
    },
    { highWaterMark: 0 },
  );
  return lastingResponse(body, init, ended);
}

/** The same source once its beginning is here. Rejects, and closes it, when it fails before that. */
export async function begun(source: ByteSource): Promise<ByteSource> {
  const pieces: (Uint8Array | null)[] = [];
  try {
    for (let length = 0; length < BEGINNING_BYTES;) {
      const piece = await source.read();
      pieces.push(piece);
      if (piece === null) break;
      length += piece.length;
    }
  } catch (error) {
    source.close();
    throw error;
  }
  return {
    read: async () => {
      const piece = pieces.shift();
      return piece === undefined ? await source.read() : piece;
    },
    close: () => source.close(),
  };
}

/** The body of a request. A client that sends nothing for too long is `BODY_TOO_SLOW`, one that leaves `BAD_REQUEST`. */
export function uploadSource(request: Request, graceMs: number = limits.bodyGraceMs): ByteSource {
  const reader = request.body?.getReader();
  let isClosed = false;
  const close = (): void => {
    if (isClosed) return;
    isClosed = true;
    // A cancel of a connection that is already gone rejects; there is nothing left to be done.
    reader?.cancel().catch(() => {});
  };
  return {
    close,
    read: async () => {
      if (reader === undefined || isClosed) return null;
      const tooSlow = Promise.withResolvers<never>();
      const timer = setTimeout(() => tooSlow.reject(new AgentError("BODY_TOO_SLOW")), graceMs);
      try {
        const { value, done } = await Promise.race([reader.read(), tooSlow.promise]);
        return done ? null : value;
      } catch (error) {
        close();
        if (error instanceof AgentError) throw error;
        throw new AgentError("BAD_REQUEST", "the request body was cut off", { cause: error });
      } finally {
        clearTimeout(timer);
      }
    },
  };
}
