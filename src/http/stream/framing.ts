// How frames look on the wire: msgpack maps behind their length, JSON lines, or server-sent events, as the client's
// `Accept` says. The three carry the same maps; JSON has bytes as Base64 under the field's name with `_base64`.
import { Packr } from "msgpackr";
import type { Frame, FrameValue } from "./frame.ts";

export interface Framing {
  readonly contentType: string;
  /** The frame's bytes in one or more parts. Nearly all of large content is a part of its own, and not a copy. */
  encode(frame: Frame): readonly Uint8Array[];
}

const LENGTH_BYTES = 4;
const BIN32_HEADER_BYTES = 5;
const FIXMAP_ENTRIES_MAX = 15;
const BIN32 = 0xc6;
const CONTENT_KEY = Buffer.from([0xa4, ...Buffer.from("data")]);
/** Content of this size is copied behind its head, and of larger content so much: a head alone costs more to send. */
const COPIED_MAX_BYTES = 32 * 1024;
const COPIED_PART_BYTES = 4 * 1024;
const UINT32_MAX = 0xffff_ffff;

// Plain maps of the shortest form, and never the record extension.
const packer = new Packr({ useRecords: false, variableMapSize: true });

/** An integer beyond 32 bits would become a float. */
function widened(value: FrameValue): unknown {
  if (typeof value === "number") return Number.isInteger(value) && Math.abs(value) > UINT32_MAX ? BigInt(value) : value;
  if (typeof value !== "object" || value === null || value instanceof Uint8Array) return value;
  if (Array.isArray(value)) return value.map(widened);
  return Object.fromEntries(Object.entries(value).map(([key, member]) => [key, widened(member)]));
}

const msgpack: Framing = {
  contentType: "application/vnd.fluxvm.stream+msgpack",
  encode(frame) {
    const { data, ...rest } = frame;
    if (!(data instanceof Uint8Array)) return [prefixed(packer.pack(widened(frame)))];
    const head = contentHead(rest, data.length);
    if (data.length < COPIED_MAX_BYTES) return [Buffer.concat([head, data])];
    return [Buffer.concat([head, data.subarray(0, COPIED_PART_BYTES)]), data.subarray(COPIED_PART_BYTES)];
  },
};

/** Everything of a frame with content that stands before it: the map is packed without it and its count raised by hand. */
function contentHead(rest: Omit<Frame, "data">, contentBytes: number): Buffer {
  const map = packer.pack(widened(rest as FrameValue));
  const entries = Object.keys(rest).length;
  if (entries >= FIXMAP_ENTRIES_MAX) throw new RangeError("a frame with too many fields");
  const head = Buffer.allocUnsafe(LENGTH_BYTES + map.length + CONTENT_KEY.length + BIN32_HEADER_BYTES);
  head.writeUInt32BE(head.length - LENGTH_BYTES + contentBytes, 0);
  head.set(map, LENGTH_BYTES);
  head[LENGTH_BYTES] = 0x80 | (entries + 1);
  const at = LENGTH_BYTES + map.length;
  head.set(CONTENT_KEY, at);
  head.writeUInt8(BIN32, at + CONTENT_KEY.length);
  head.writeUInt32BE(contentBytes, head.length - LENGTH_BYTES);
  return head;
}

function prefixed(map: Uint8Array): Uint8Array {
  const whole = Buffer.allocUnsafe(LENGTH_BYTES + map.length);
  whole.writeUInt32BE(map.length, 0);
  whole.set(map, LENGTH_BYTES);
  return whole;
}

function jsonText(frame: Frame): string {
  const fields = Object.entries(frame).map(([key, value]) =>
    value instanceof Uint8Array ? [`${key}_base64`, value.toBase64()] : [key, value],
  );
  return JSON.stringify(Object.fromEntries(fields));
}

const ndjson: Framing = {
  contentType: "application/x-ndjson",
  encode: (frame) => [Buffer.from(`${jsonText(frame)}\n`)],
};

const serverSentEvents: Framing = {
  contentType: "text/event-stream",
  encode: (frame) => [Buffer.from(`event: ${frame.type}\ndata: ${jsonText(frame)}\n\n`)],
};

export const framings = { msgpack, ndjson, serverSentEvents } as const;

const BY_TYPE: ReadonlyMap<string, Framing> = new Map(
  Object.values(framings).map((framing) => [framing.contentType, framing]),
);

/** The stream framing that `Accept` names with the highest weight, the first of equals; null when it names none. */
export function acceptedFraming(accept: string | null): Framing | null {
  let chosen: Framing | null = null;
  let chosenWeight = 0;
  for (const choice of (accept ?? "").split(",")) {
    const [type = "", ...parameters] = choice.split(";").map((part) => part.trim().toLowerCase());
    const framing = BY_TYPE.get(type);
    const weight = Number(parameters.find((parameter) => parameter.startsWith("q="))?.slice(2) ?? 1);
    if (framing === undefined || !(weight > chosenWeight)) continue;
    chosen = framing;
    chosenWeight = weight;
  }
  return chosen;
}
