// What a client may send over a WebSocket. Everything is hostile until it has passed here: JSON text or a msgpack map,
// one of three types, every field checked by hand.
import { MsgpackReader } from "../../guest/msgpack.ts";
import { ProtocolViolation } from "../../guest/violation.ts";
import { MessageError } from "../stream/socket.ts";

export type ClientMessage =
  | { readonly type: "stdin"; readonly offset: number; readonly data: Uint8Array; readonly eof: boolean }
  | { readonly type: "resize"; readonly cols: number; readonly rows: number }
  | { readonly type: "signal"; readonly signal: string | number };

const TERMINAL_SIDE_MAX = 65_535;
const SIGNAL_NAME_MAX_CHARS = 16;
const NO_BYTES = new Uint8Array(0);

type Fields = Readonly<Record<string, unknown>>;

/**
 * Reads a message: text is JSON, with bytes as Base64 in `data_base64`; binary is a msgpack map, with bytes in `data`.
 * Throws `MessageError`.
 */
export function parseMessage(message: string | Uint8Array): ClientMessage {
  return typeof message === "string" ? parseJsonMessage(message) : parseMsgpackMessage(message);
}

function parseJsonMessage(text: string): ClientMessage {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new MessageError("a message is not JSON");
  }
  if (typeof value !== "object" || value === null) throw new MessageError("a message is not an object");
  const fields = value as Fields;
  return checked(fields, () => base64(fields.data_base64));
}

function parseMsgpackMessage(bytes: Uint8Array): ClientMessage {
  const reader = new MsgpackReader();
  reader.reset(bytes);
  let fields: Fields;
  try {
    fields = reader.wholeMap();
  } catch (error) {
    if (error instanceof ProtocolViolation || error instanceof RangeError) {
      throw new MessageError("a message is not a msgpack map");
    }
    throw error;
  }
  return checked(fields, () => {
    const { data = NO_BYTES } = fields;
    if (!(data instanceof Uint8Array)) throw new MessageError("data is not bytes");
    return data;
  });
}

function checked(fields: Fields, data: () => Uint8Array): ClientMessage {
  switch (fields.type) {
    case "stdin":
      return {
        type: "stdin",
        offset: integer(fields.offset, "offset", 0, Number.MAX_SAFE_INTEGER),
        data: data(),
        eof: flag(fields.eof),
      };
    case "resize":
      return {
        type: "resize",
        cols: integer(fields.cols, "cols", 1, TERMINAL_SIDE_MAX),
        rows: integer(fields.rows, "rows", 1, TERMINAL_SIDE_MAX),
      };
    case "signal":
      return { type: "signal", signal: signal(fields.signal) };
    default:
      throw new MessageError("type is one of stdin, resize, signal");
  }
}

function integer(value: unknown, name: string, min: number, max: number): number {
  const number = typeof value === "bigint" ? Number(value) : value;
  if (typeof number === "number" && Number.isInteger(number) && number >= min && number <= max) return number;
  throw new MessageError(`${name} is not an integer from ${min} to ${max}`);
}

function flag(value: unknown): boolean {
  if (value === undefined || typeof value === "boolean") return value === true;
  throw new MessageError("eof is not a boolean");
}

function signal(value: unknown): string | number {
  if (typeof value === "string" && value.length <= SIGNAL_NAME_MAX_CHARS) return value;
  if (typeof value === "number" || typeof value === "bigint") return Number(value);
  throw new MessageError("signal is neither a name nor a number");
}

function base64(value: unknown): Uint8Array {
  if (value === undefined) return NO_BYTES;
  try {
    if (typeof value === "string") return Uint8Array.fromBase64(value, { lastChunkHandling: "strict" });
  } catch {
    // Said below.
  }
  throw new MessageError("data_base64 is not Base64");
}
