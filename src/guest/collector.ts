// Gathers received bytes into one array with few copies and a hard bound.
import { ProtocolViolation } from "./violation.ts";

export class ByteCollector {
  readonly #maxBytes: number;
  #bytes: Uint8Array<ArrayBufferLike> = new Uint8Array(0);
  #length = 0;

  constructor(maxBytes: number) {
    this.#maxBytes = maxBytes;
  }

  get length(): number {
    return this.#length;
  }

  /** Makes room for that many bytes at once; untouched memory costs nothing. */
  reserve(bytes: number): void {
    if (bytes > this.#maxBytes) throw new ProtocolViolation("more bytes announced than were asked for");
    this.#grow(bytes);
  }

  /** Throws `ProtocolViolation` beyond the bound. */
  append(content: Uint8Array): void {
    const length = this.#length + content.length;
    if (length > this.#maxBytes) throw new ProtocolViolation("more bytes than were asked for");
    if (length > this.#bytes.length) {
      // Most outputs come in one piece, so the first growth is exact.
      this.#grow(this.#length === 0 ? length : Math.min(this.#maxBytes, Math.max(2 * this.#bytes.length, length)));
    }
    this.#bytes.set(content, this.#length);
    this.#length = length;
  }

  /** What was gathered; the collector must not be used afterwards. */
  take(): Uint8Array {
    return this.#length === this.#bytes.length ? this.#bytes : this.#bytes.subarray(0, this.#length);
  }

  #grow(capacity: number): void {
    if (capacity <= this.#bytes.length) return;
    const grown = new Uint8Array(capacity);
    grown.set(this.#bytes.subarray(0, this.#length));
    this.#bytes = grown;
  }
}
