// Reads request bodies: bounded whatever `Content-Length` says, within a time that depends on the size, and as JSON
// only where the client says so or says nothing.
import { limits } from "../config/limits.ts";
import type { Json } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { BodyBudget } from "./body-budget.ts";

const JSON_TYPE = /^application\/json\s*(?:;\s*charset\s*=\s*"?utf-8"?\s*)?$/i;
const SURROGATE_ESCAPE = /\\u[dD][89a-fA-F]/;

/** A body in memory and the release of its share of the budget. */
export interface HeldBody {
  readonly bytes: Uint8Array;
  readonly release: () => void;
}

/** No body at all. */
export const NOTHING: HeldBody = { bytes: new Uint8Array(0), release: () => {} };

/**
 * Reads the whole body. Rejects with `BODY_TOO_LARGE` above `maxBytes`, `UPLOADS_BUSY` when the budget of all
 * or of `holder` is taken, `BODY_TOO_SLOW`, or `BAD_REQUEST` when the client cuts it off.
 */
export async function readBody(
  request: Request,
  maxBytes: number,
  budget: BodyBudget,
  holder: string,
  graceMs: number = limits.bodyGraceMs,
): Promise<HeldBody> {
  if (request.body === null) return NOTHING;
  const declared = request.headers.get("content-length");
  const declaredBytes = declared === null ? null : Number(declared);
  if (declaredBytes !== null && declaredBytes > maxBytes) throw tooLarge(maxBytes);
  const shareBytes = declaredBytes ?? maxBytes;
  const release = shareBytes > limits.smallBodyMaxBytes ? await budget.reserve(shareBytes, holder) : NOTHING.release;
  try {
    return { bytes: await collect(request.body, maxBytes, graceMs), release };
  } catch (error) {
    release();
    throw error;
  }
}

async function collect(body: ReadableStream<Uint8Array>, maxBytes: number, graceMs: number): Promise<Uint8Array> {
  const reader = body.getReader();
  let failure: AgentError | null = null;
  const stop = (error: AgentError): void => {
    failure ??= error;
    // A cancel of a connection that is already gone rejects; the failure above is what counts.
    reader.cancel().catch(() => {});
  };
  const chunks: Uint8Array[] = [];
  let length = 0;
  const startedAtMs = performance.now();
  let timer: Timer;
  // What has arrived buys time, not what was announced: a body that stalls holds its share for the grace only.
  const watch = (): void => {
    const leftMs = startedAtMs + graceMs + (length / limits.bodyRateMinBytesPerSecond) * 1000 - performance.now();
    if (leftMs <= 0) stop(new AgentError("BODY_TOO_SLOW"));
    else timer = setTimeout(watch, leftMs);
  };
  watch();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (failure !== null) throw failure;
      if (done) return chunks.length === 1 ? chunks[0]! : Buffer.concat(chunks, length);
      length += value.byteLength;
      if (length > maxBytes) stop(tooLarge(maxBytes));
      else chunks.push(value);
    }
  } catch (error) {
    throw failure ?? new AgentError("BAD_REQUEST", "the request body was cut off", { cause: error });
  } finally {
    clearTimeout(timer!);
  }
}

function tooLarge(maxBytes: number): AgentError {
  return new AgentError("BODY_TOO_LARGE", undefined, { details: { limit_bytes: maxBytes } });
}

/** Throws `UNSUPPORTED_MEDIA_TYPE` unless the content type is JSON in UTF-8 or missing. */
export function checkJsonType(request: Request): void {
  const type = request.headers.get("content-type");
  if (type !== null && !JSON_TYPE.test(type)) throw new AgentError("UNSUPPORTED_MEDIA_TYPE");
}

/** Parses a JSON body; throws `MALFORMED_JSON`. Strings with half a surrogate pair name no text and are refused. */
export function parseJson(bytes: Uint8Array): Json {
  let text: string;
  let value: Json;
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    value = JSON.parse(text);
  } catch {
    throw new AgentError("MALFORMED_JSON");
  }
  if (SURROGATE_ESCAPE.test(text) && !isWellFormed(value)) {
    throw new AgentError("MALFORMED_JSON", "the body has a string that is not valid Unicode");
  }
  return value;
}

function isWellFormed(root: Json): boolean {
  const pending: Json[] = [root];
  for (let value = pending.pop(); value !== undefined; value = pending.pop()) {
    if (typeof value === "string" && !value.isWellFormed()) return false;
    if (typeof value !== "object" || value === null) continue;
    for (const [key, member] of Object.entries(value)) {
      if (!key.isWellFormed()) return false;
      pending.push(member);
    }
  }
  return true;
}
