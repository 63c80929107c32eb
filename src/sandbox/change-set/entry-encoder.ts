// Turns entries into the bytes of their lines. A baseline has a line for every file of a workspace, so the usual entry
// is written byte by byte into buffers that are used again; only odd names go through strings.
import type { ManifestEntry } from "../../contracts/channel.ts";
import { entryLine } from "./listing-format.ts";

/** When this much is pending, `isFull` asks for it to be taken. */
const FULL_BYTES = 256 * 1024;
/** A path and a link target of 4,096 bytes with every byte escaped, and the numbers. */
const LINE_MAX_BYTES = 2 * 6 * 4096 + 1024;

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const ZERO = 0x30;
const LINE_END = Buffer.from(",\n");
const AFTER_PATH = Buffer.from('",0,"');

const DIGEST_BYTES = 32;
/** The two digits of each byte, as one number in this machine's order. */
const HEX_PAIRS = hexPairs();

function hexPairs(): Uint16Array {
  const text = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, "0")).join("");
  return new Uint16Array(new TextEncoder().encode(text).slice().buffer);
}

export class EntryEncoder {
  #buffer = newBuffer();
  #length = 0;
  #started = false;
  #spare: Buffer[] = [];
  readonly #digits = new Uint16Array(DIGEST_BYTES);
  readonly #digitBytes = new Uint8Array(this.#digits.buffer);
  /** Mode and owner of the latest file with the end of its line: most files of a tree have the same. */
  #attributes = { mode: -1, uid: -1, gid: -1, text: Buffer.alloc(0) };

  get isFull(): boolean {
    return this.#length >= FULL_BYTES;
  }

  /** Appends a line. Take what is pending whenever `isFull`; more than one entry beyond that does not fit. */
  add(path: Uint8Array, entry: ManifestEntry): void {
    if (this.#length + LINE_MAX_BYTES > this.#buffer.length) throw new Error("pending entries were not taken");
    if (this.#started) this.#length += LINE_END.copy(this.#buffer, this.#length);
    this.#started = true;
    const start = this.#length;
    const usual = entry.kind === "file" && entry.fingerprint.length <= DIGEST_BYTES;
    if (usual && this.#addFile(path, entry)) return;
    this.#length = start + this.#buffer.write(entryLine(path, entry), start);
  }

  /** The pending bytes; give them back with `reuse` when they are written. */
  take(): Buffer {
    const taken = this.#buffer.subarray(0, this.#length);
    this.#buffer = this.#spare.pop() ?? newBuffer();
    this.#length = 0;
    return taken;
  }

  /** Lets the memory of `taken` bytes, which nobody may look at afterwards, be written again. */
  reuse(taken: Buffer): void {
    this.#spare.push(Buffer.from(taken.buffer, taken.byteOffset, FULL_BYTES + LINE_MAX_BYTES));
  }

  /** False when the path needs an escape; what was written then counts for nothing. */
  #addFile(path: Uint8Array, { fingerprint, size, mode, uid, gid }: ManifestEntry): boolean {
    const buffer = this.#buffer;
    let at = this.#length;
    buffer[at++] = 0x5b;
    buffer[at++] = QUOTE;
    // By index: stepping through typed arrays with an iterator costs several times as much.
    for (let index = 0; index < path.length; index += 1) {
      const byte = path[index] as number;
      if (byte < 0x20 || byte > 0x7e || byte === QUOTE || byte === BACKSLASH) return false;
      buffer[at++] = byte;
    }
    buffer.set(AFTER_PATH, at);
    at = this.#addHex(fingerprint, at + AFTER_PATH.length);
    buffer[at++] = QUOTE;
    buffer[at++] = COMMA;
    at = this.#addNumber(size, at);
    const attributes = this.#attributesText(mode, uid, gid);
    buffer.set(attributes, at);
    this.#length = at + attributes.length;
    return true;
  }

  /** At most `DIGEST_BYTES`; the position behind their digits. */
  #addHex(bytes: Uint8Array, at: number): number {
    for (let index = 0; index < bytes.length; index += 1) {
      this.#digits[index] = HEX_PAIRS[bytes[index] as number] as number;
    }
    const length = 2 * bytes.length;
    this.#buffer.set(length === this.#digitBytes.length ? this.#digitBytes : this.#digitBytes.subarray(0, length), at);
    return at + length;
  }

  /** A whole number from 0 to 2^53 in decimal; the position behind it. */
  #addNumber(value: number, at: number): number {
    let digits = 1;
    for (let rest = value; rest >= 10; rest = Math.floor(rest / 10)) digits += 1;
    for (let place = at + digits - 1, rest = value; place >= at; place -= 1) {
      const tens = Math.floor(rest / 10);
      this.#buffer[place] = rest - 10 * tens + ZERO;
      rest = tens;
    }
    return at + digits;
  }

  #attributesText(mode: number, uid: number, gid: number): Buffer {
    const latest = this.#attributes;
    if (mode !== latest.mode || uid !== latest.uid || gid !== latest.gid) {
      this.#attributes = { mode, uid, gid, text: Buffer.from(`,${mode},${uid},${gid}]`) };
    }
    return this.#attributes.text;
  }
}

/** Not from the pool of small buffers: `reuse` finds the memory by its size. */
function newBuffer(): Buffer {
  return Buffer.allocUnsafeSlow(FULL_BYTES + LINE_MAX_BYTES);
}
