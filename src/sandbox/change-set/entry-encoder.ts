// Turns entries into the bytes of their lines. A baseline has a line for every file of a workspace, so the usual entry
// is written byte by byte into one buffer; only odd names go through strings.
import type { ManifestEntry } from "../../contracts/channel.ts";
import { entryLine } from "./listing-format.ts";

/** When this much is pending, `isFull` asks for it to be taken. */
const FULL_BYTES = 256 * 1024;
/** A path and a link target of 4,096 bytes with every byte escaped, and the numbers. */
const LINE_MAX_BYTES = 2 * 6 * 4096 + 1024;

const QUOTE = 0x22;
const COMMA = 0x2c;
const BACKSLASH = 0x5c;
const HEX = Buffer.from("0123456789abcdef");
const LINE_END = Buffer.from(",\n");

export class EntryEncoder {
  readonly #buffer = Buffer.allocUnsafe(FULL_BYTES + LINE_MAX_BYTES);
  #length = 0;
  #started = false;

  get isFull(): boolean {
    return this.#length >= FULL_BYTES;
  }

  /** Appends a line. Take what is pending whenever `isFull`; more than one entry beyond that does not fit. */
  add(path: Uint8Array, entry: ManifestEntry): void {
    if (this.#length + LINE_MAX_BYTES > this.#buffer.length) throw new Error("pending entries were not taken");
    if (this.#started) this.#length += LINE_END.copy(this.#buffer, this.#length);
    this.#started = true;
    const start = this.#length;
    if (entry.kind === "file" && this.#addFile(path, entry)) return;
    this.#length = start + this.#buffer.write(entryLine(path, entry), start);
  }

  /** The pending bytes; valid until the next `add`. */
  take(): Buffer {
    const taken = this.#buffer.subarray(0, this.#length);
    this.#length = 0;
    return taken;
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
    buffer[at++] = QUOTE;
    buffer[at++] = COMMA;
    buffer[at++] = 0x30;
    buffer[at++] = COMMA;
    buffer[at++] = QUOTE;
    for (let index = 0; index < fingerprint.length; index += 1) {
      const byte = fingerprint[index] as number;
      buffer[at++] = HEX[byte >> 4] as number;
      buffer[at++] = HEX[byte & 15] as number;
    }
    const rest = `",${size},${mode},${uid},${gid}]`;
    for (let index = 0; index < rest.length; index += 1) buffer[at++] = rest.charCodeAt(index);
    this.#length = at;
    return true;
  }
}
