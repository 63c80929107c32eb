// The model's own reading of names in the clear: DNS questions and TLS greetings, compared as text with what a policy
// lists.
import { type ModelPacket, TCP, u16 } from "./parse.ts";

const NAME_MAX = 128;

/** Whether one of the patterns is for this name. */
function isListed(name: string, patterns: readonly string[]): boolean {
  return patterns.some((pattern) =>
    pattern.startsWith("*.") ? name.endsWith(pattern.slice(1)) && name.length > pattern.length - 1 : name === pattern,
  );
}

/** ASCII letters only: other bytes are what they are. */
function lowered(bytes: Uint8Array): string {
  return Buffer.from(bytes.map((byte) => (byte >= 0x41 && byte <= 0x5a ? byte + 32 : byte))).toString("latin1");
}

/** Whether the payload is exactly one standard query with one question, for a name of the list. */
export function isAllowedQuestion(packet: ModelPacket, patterns: readonly string[]): boolean {
  let message = packet.payload ?? new Uint8Array(0);
  if (packet.protocol === TCP) {
    if (message.length < 2 || u16(message, 0) !== message.length - 2) return false;
    message = message.subarray(2);
  }
  if (message.length <= 12 || ((message[2] ?? 0) & 0xf8) !== 0 || u16(message, 4) !== 1) return false;
  const body = message.subarray(12);
  const labels: string[] = [];
  let at = 0;
  for (;;) {
    const length = body[at];
    if (length === undefined || at >= NAME_MAX + 2) return false;
    if (length === 0) break;
    if (length > 63 || labels.length === 64) return false;
    const label = lowered(body.subarray(at + 1, at + 1 + length));
    if (label.includes(".")) return false;
    labels.push(label);
    at += 1 + length;
  }
  const isWhole = at + 1 + 4 <= body.length;
  return labels.length > 0 && isWhole && isListed(labels.join("."), patterns);
}

/** What the first payload of a connection to the port of TLS says. */
export function readGreeting(payload: Uint8Array, patterns: readonly string[]): "allowed" | "denied" | "none" {
  const [type, major, minor] = payload;
  if (type !== 0x16 || (major !== undefined && major !== 3) || (minor !== undefined && minor > 4)) return "none";
  const name = serverName(payload);
  return name !== null && isListed(name, patterns) ? "allowed" : "denied";
}

/** The first name of a server in the first record; null where there is none, or not all of it. */
function serverName(payload: Uint8Array): string | null {
  if (payload.length < 9 || payload[5] !== 1) return null;
  const record = payload.subarray(0, 5 + u16(payload, 3));
  let at = 9 + 2 + 32;
  /** Skips a list with its length before it, of one or two bytes. */
  const skip = (bytes: 1 | 2): boolean => {
    if (at + bytes > record.length) return false;
    at += bytes + (bytes === 1 ? (record[at] ?? 0) : u16(record, at));
    return true;
  };
  if (!skip(1) || !skip(2) || !skip(1)) return null;
  at += 2;
  for (let seen = 0; seen < 64; seen++) {
    if (at + 4 > record.length) return null;
    if (u16(record, at) !== 0) {
      // The last that is looked at may not be one more of the others.
      if (seen === 63) return null;
      at += 4 + u16(record, at + 2);
      continue;
    }
    const list = at + 4;
    if (u16(record, at + 2) < 5 || list + 5 > record.length || record[list + 2] !== 0) return null;
    const length = u16(record, list + 3);
    if (length === 0 || length > NAME_MAX || list + 5 + length > record.length) return null;
    return lowered(record.subarray(list + 5, list + 5 + length));
  }
  return null;
}
