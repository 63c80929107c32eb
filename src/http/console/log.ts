// The log of a console as a body of text: whole, or one that goes on until its reader leaves.
import type { ByteSource } from "../../contracts/files.ts";
import type { Place } from "../stream/attached.ts";
import { bytesResponse } from "../stream/bytes.ts";

export const LOG_TYPE = "text/plain; charset=utf-8";
const HEADERS = { "content-type": LOG_TYPE };

/** Everything that a source gives, which is bounded by its maker. */
export async function readAll(source: ByteSource): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for (let piece = await source.read(); piece !== null; piece = await source.read()) pieces.push(piece);
  return Buffer.concat(pieces);
}

/** A log that has an end. */
export async function wholeLog(source: ByteSource): Promise<Response> {
  return new Response(await readAll(source), { headers: HEADERS });
}

/** A log that goes on; its place is given back when it is over. */
export function followedLog(source: ByteSource, place: Place): Response {
  place.onInterrupt(() => source.close());
  const close = (): void => {
    source.close();
    place.leave();
  };
  return bytesResponse({ read: () => source.read(), close }, { headers: HEADERS });
}
