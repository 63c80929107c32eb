// The script's output taken apart: the header line, the encoding, and the NUL-terminated fields within.
import type { FingerprintMode } from "../../src/contracts/change-set.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { Pace } from "./pace.ts";

const NEWLINE = 0x0a;
const HEADER_MAX_BYTES = 32;
const SLICE_BYTES = 64 * 1024;
/** A path, a link's target and the numbers around them; more is no listing of ours. */
const FIELD_MAX_BYTES = 16 * 1024;

export interface Header {
  readonly mode: FingerprintMode;
  readonly encoding: "base64" | "hex";
  /** Where the encoded fields begin. */
  readonly bodyAt: number;
}

/** Error `WALK_FAILED` for anything but a header of `listing.sh`. */
export function parseHeader(output: Uint8Array): Header {
  const end = output.subarray(0, HEADER_MAX_BYTES).indexOf(NEWLINE);
  const line = Buffer.from(output.subarray(0, Math.max(end, 0))).toString("latin1");
  const [, mode, encoding] = /^(sha256|stat) (base64|hex)$/.exec(line) ?? [];
  if (mode === undefined || encoding === undefined)
    throw new AgentError("WALK_FAILED", "the guest's answer is no listing");
  return { mode: mode as FingerprintMode, encoding: encoding as Header["encoding"], bodyAt: end + 1 };
}

/** Calls `take` with each field of the body, in order; incomplete last fields are dropped. */
export async function readFields(
  output: Uint8Array,
  { encoding, bodyAt }: Header,
  pace: Pace,
  take: (field: Buffer) => void,
): Promise<void> {
  // Characters that stand for whole bytes only: 4 of base64 are 3 bytes, 2 of hex are 1.
  const unit = encoding === "base64" ? 4 : 2;
  let text = "";
  let rest = Buffer.alloc(0);
  for (let at = bodyAt; at < output.length; at += SLICE_BYTES) {
    text += Buffer.from(output.subarray(at, at + SLICE_BYTES))
      .toString("latin1")
      .replace(/\s+/g, "");
    const whole = text.length - (text.length % unit);
    rest = takeFields(Buffer.concat([rest, Buffer.from(text.slice(0, whole), encoding)]), take);
    text = text.slice(whole);
    await pace.turn();
  }
}

function takeFields(bytes: Buffer<ArrayBuffer>, take: (field: Buffer) => void): Buffer<ArrayBuffer> {
  let start = 0;
  for (let end = bytes.indexOf(0); end >= 0; end = bytes.indexOf(0, start)) {
    take(bytes.subarray(start, end));
    start = end + 1;
  }
  const rest = bytes.subarray(start);
  if (rest.length > FIELD_MAX_BYTES)
    throw new AgentError("WALK_FAILED", "the guest's listing has a field without an end");
  return rest;
}
