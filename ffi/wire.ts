// Writes job arguments: a fixed part of packed little-endian fields, then the texts that the fixed part points at.
// Every value is checked against its width, because the foreign function interface would truncate it silently.
import { TEXT_MAX_BYTES } from "./layout/host.ts";

const U32_MAX = 0xffff_ffff;

/** Converts a 64-bit value that is small by meaning. Throws `RangeError` when it is not. */
export function safeInteger(value: bigint): number {
  if (value > BigInt(Number.MAX_SAFE_INTEGER)) throw new RangeError(`${value} is not a safe integer`);
  return Number(value);
}

/** The arguments of one job. Each method writes the field at `at` and throws on a value that does not fit. */
export class ArgumentWriter {
  #fixed: DataView<ArrayBuffer>;
  readonly #texts: Uint8Array[] = [];
  #end: number;

  constructor(fixedBytes: number) {
    this.#fixed = new DataView(new ArrayBuffer(fixedBytes));
    this.#end = fixedBytes;
  }

  u32(at: number, value: number): this {
    if (!Number.isInteger(value) || value < 0 || value > U32_MAX) throw new RangeError(`${value} is not a u32`);
    this.#fixed.setUint32(at, value, true);
    return this;
  }

  size(at: number, value: number): this {
    if (!Number.isSafeInteger(value) || value < 0) throw new RangeError(`${value} is not a size`);
    this.#fixed.setBigUint64(at, BigInt(value), true);
    return this;
  }

  u64(at: number, value: bigint): this {
    if (value < 0n || value >= 1n << 64n) throw new RangeError(`${value} is not a u64`);
    this.#fixed.setBigUint64(at, value, true);
    return this;
  }

  text(at: number, value: string | Uint8Array): this {
    const bytes = typeof value === "string" ? new TextEncoder().encode(value) : value;
    if (bytes.length > TEXT_MAX_BYTES) throw new RangeError(`a text is limited to ${TEXT_MAX_BYTES} bytes`);
    if (bytes.includes(0)) throw new RangeError("a text may not hold a NUL byte");
    this.u32(at, this.#end).u32(at + 4, bytes.length);
    this.#texts.push(bytes);
    this.#end += bytes.length;
    return this;
  }

  /** The whole message, in storage of its own that does not move. */
  finish(): Uint8Array<ArrayBuffer> {
    const message = new Uint8Array(new ArrayBuffer(this.#end));
    message.set(new Uint8Array(this.#fixed.buffer));
    let at = this.#fixed.byteLength;
    for (const text of this.#texts) {
      message.set(text, at);
      at += text.length;
    }
    return message;
  }
}
