// Bytes that have arrived and that nobody has taken yet, in the order of their arrival. Many small pieces take no more room
// than their bytes.

const BLOCK_BYTES = 16 * 1024;
const SMALL_BYTES = 4 * 1024;
const NO_BYTES = new Uint8Array(0);

/** A block of small pieces at the end of the queue; what was taken from it stays as it is. */
interface Block {
  readonly bytes: Uint8Array;
  from: number;
  to: number;
}

export class ByteQueue {
  readonly #pieces: Uint8Array[] = [];
  #block: Block | null = null;
  #length = 0;

  get length(): number {
    return this.#length;
  }

  push(data: Uint8Array): void {
    this.#length += data.length;
    if (data.length > SMALL_BYTES) {
      this.#seal();
      this.#pieces.push(data);
      return;
    }
    if (this.#block === null || this.#block.to + data.length > BLOCK_BYTES) {
      this.#seal();
      this.#block = { bytes: new Uint8Array(BLOCK_BYTES), from: 0, to: 0 };
    }
    this.#block.bytes.set(data, this.#block.to);
    this.#block.to += data.length;
  }

  /** Takes up to `max` bytes from the front; empty when there are none. */
  take(max: number): Uint8Array {
    const first = this.#takeOnce(max);
    const wanted = Math.min(max - first.length, this.#length);
    if (wanted === 0) return first;
    const taken = new Uint8Array(first.length + wanted);
    taken.set(first);
    for (let filled = first.length; filled < taken.length;) {
      const piece = this.#takeOnce(taken.length - filled);
      taken.set(piece, filled);
      filled += piece.length;
    }
    return taken;
  }

  clear(): void {
    this.#pieces.length = 0;
    this.#block = null;
    this.#length = 0;
  }

  /** Takes from the first piece alone. */
  #takeOnce(max: number): Uint8Array {
    const piece = this.#pieces.length > 0 ? this.#takeOfPieces(max) : this.#takeOfBlock(max);
    this.#length -= piece.length;
    return piece;
  }

  #takeOfPieces(max: number): Uint8Array {
    const first = this.#pieces[0]!;
    if (first.length > max) this.#pieces[0] = first.subarray(max);
    else this.#pieces.shift();
    return first.subarray(0, max);
  }

  #takeOfBlock(max: number): Uint8Array {
    const block = this.#block;
    if (block === null) return NO_BYTES;
    const piece = block.bytes.subarray(block.from, Math.min(block.to, block.from + max));
    block.from += piece.length;
    return piece;
  }

  #seal(): void {
    const block = this.#block;
    if (block !== null && block.to > block.from) this.#pieces.push(block.bytes.subarray(block.from, block.to));
    this.#block = null;
  }
}
