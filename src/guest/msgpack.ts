// A reader of the msgpack that the guest-agent protocol uses, for bytes from a peer that may be hostile: no extension
// types, every count and depth bounded, nothing allocated from a length that has not been checked against the input.
import { ProtocolViolation, Truncated } from "./violation.ts";

const DEPTH_MAX = 8;
const MAP_ENTRIES_MAX = 64;
const ARRAY_ITEMS_MAX = 4096;

/** A decoded map; it has no prototype, so no key of the peer's can mean anything. */
export type Fields = { readonly [key: string]: unknown };

/** Reads values one after the other. Throws `Truncated` where the input ends early, else `ProtocolViolation`. */
export class MsgpackReader {
  #bytes: Uint8Array = new Uint8Array(0);
  /** The same memory, for the number and text methods that only a `Buffer` has. */
  #buffer: Buffer = Buffer.alloc(0);
  position = 0;

  /** Starts over on these bytes. */
  reset(bytes: Uint8Array): void {
    this.#bytes = bytes;
    this.#buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    this.position = 0;
  }

  get remaining(): number {
    return this.#bytes.length - this.position;
  }

  /** The bytes that have not been read. */
  rest(): Uint8Array {
    return this.#bytes.subarray(this.position);
  }

  /** Takes a nil when one is next. */
  takeNil(): boolean {
    if (this.#peek() !== 0xc0) return false;
    this.position++;
    return true;
  }

  /** The length of the array that starts here. */
  arrayLength(): number {
    const tag = this.#uint(1);
    if (tag >= 0x90 && tag <= 0x9f) return tag & 0x0f;
    if (tag === 0xdc) return this.#uint(2);
    if (tag === 0xdd) return this.#uint(4);
    throw new ProtocolViolation("an array was expected");
  }

  /** An integer of any width from 0 up. Beyond 2^53 it is rounded. */
  unsigned(): number {
    const tag = this.#uint(1);
    if (tag <= 0x7f) return tag;
    if (tag === 0xcc) return this.#uint(1);
    if (tag === 0xcd) return this.#uint(2);
    if (tag === 0xce) return this.#uint(4);
    if (tag === 0xcf) return this.#uint(4) * 2 ** 32 + this.#uint(4);
    throw new ProtocolViolation("an unsigned integer was expected");
  }

  /** The length of the byte string that starts here; its content comes next. */
  binaryLength(): number {
    const tag = this.#uint(1);
    if (tag < 0xc4 || tag > 0xc6) throw new ProtocolViolation("a byte string was expected");
    return this.#uint(1 << (tag - 0xc4));
  }

  /** A byte string of at most `maxBytes`, as a copy, which does not keep the input alive. */
  bytes(maxBytes: number): Uint8Array {
    const length = this.binaryLength();
    if (length > maxBytes) throw new ProtocolViolation("a byte string is longer than its limit");
    const start = this.#advance(length);
    return this.#bytes.slice(start, start + length);
  }

  /** A map with string keys that is the whole rest of the input. */
  wholeMap(): Fields {
    const value = this.value();
    if (this.remaining > 0) throw new ProtocolViolation("bytes follow the payload");
    if (typeof value !== "object" || value === null || Array.isArray(value) || value instanceof Uint8Array) {
      throw new ProtocolViolation("the payload is not a map");
    }
    return value as Fields;
  }

  /** Any value: null, boolean, number, string, `Uint8Array` (a view of the input), array or map. */
  value(depth = 0): unknown {
    const tag = this.#uint(1);
    if (tag <= 0x7f) return tag;
    if (tag >= 0xe0) return tag - 0x100;
    if (tag <= 0x8f) return this.#map(tag & 0x0f, depth);
    if (tag <= 0x9f) return this.#array(tag & 0x0f, depth);
    if (tag <= 0xbf) return this.#text(tag & 0x1f);
    switch (tag) {
      case 0xc0:
        return null;
      case 0xc2:
        return false;
      case 0xc3:
        return true;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.#view(this.#uint(1 << (tag - 0xc4)));
      case 0xca:
        return this.#buffer.readFloatBE(this.#advance(4));
      case 0xcb:
        return this.#buffer.readDoubleBE(this.#advance(8));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.#uint(1 << (tag - 0xcc));
      case 0xcf:
        return this.#uint(4) * 2 ** 32 + this.#uint(4);
      case 0xd0:
      case 0xd1:
      case 0xd2: {
        const size = 1 << (tag - 0xd0);
        return this.#buffer.readIntBE(this.#advance(size), size);
      }
      case 0xd3:
        return Number(this.#buffer.readBigInt64BE(this.#advance(8)));
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.#text(this.#uint(1 << (tag - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.#array(this.#uint(tag === 0xdc ? 2 : 4), depth);
      case 0xde:
      case 0xdf:
        return this.#map(this.#uint(tag === 0xde ? 2 : 4), depth);
      default:
        throw new ProtocolViolation(`msgpack type 0x${tag.toString(16)} is not used here`);
    }
  }

  #map(entries: number, depth: number): Fields {
    if (entries > MAP_ENTRIES_MAX || depth >= DEPTH_MAX) throw new ProtocolViolation("a map is too large or too deep");
    const map = Object.create(null) as Record<string, unknown>;
    for (let n = 0; n < entries; n++) {
      const key = this.value(DEPTH_MAX);
      if (typeof key !== "string" || key in map) throw new ProtocolViolation("a map key is no string or comes twice");
      map[key] = this.value(depth + 1);
    }
    return map;
  }

  #array(items: number, depth: number): unknown[] {
    if (items > ARRAY_ITEMS_MAX || depth >= DEPTH_MAX) throw new ProtocolViolation("an array is too large or too deep");
    const array: unknown[] = [];
    for (let n = 0; n < items; n++) array.push(this.value(depth + 1));
    return array;
  }

  #text(length: number): string {
    const start = this.#advance(length);
    return this.#buffer.toString("utf8", start, start + length);
  }

  #view(length: number): Uint8Array {
    const start = this.#advance(length);
    return this.#bytes.subarray(start, start + length);
  }

  /** Passes over `length` bytes that must be there; where they start. */
  #advance(length: number): number {
    const start = this.position;
    if (length > this.#bytes.length - start) throw Truncated;
    this.position = start + length;
    return start;
  }

  #peek(): number {
    const byte = this.#bytes[this.position];
    if (byte === undefined) throw Truncated;
    return byte;
  }

  /** A big-endian unsigned integer of 1, 2 or 4 bytes. */
  #uint(size: number): number {
    const bytes = this.#bytes;
    const start = this.#advance(size);
    let value = 0;
    for (let at = start; at < start + size; at++) value = value * 256 + (bytes[at] as number);
    return value;
  }
}
