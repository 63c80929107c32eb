// A stream read by number of bytes.
import { ArchiveError } from "./header.ts";

interface Pieces {
  read(): Promise<{ readonly done: boolean; readonly value?: Uint8Array }>;
  cancel(): Promise<void>;
}

export class PieceReader {
  readonly #reader: Pieces;
  #rest: Uint8Array = new Uint8Array(0);

  constructor(stream: ReadableStream<Uint8Array>) {
    this.#reader = stream.getReader();
  }

  /** From 1 to `max` bytes. Throws `ArchiveError` at the end. */
  async some(max: number): Promise<Uint8Array> {
    while (this.#rest.length === 0) {
      const { value } = await this.#reader.read();
      if (value === undefined) throw new ArchiveError("the archive was cut off");
      this.#rest = value;
    }
    const piece = this.#rest.subarray(0, max);
    this.#rest = this.#rest.subarray(piece.length);
    return piece;
  }

  /** Exactly `count` bytes. Throws `ArchiveError` when it ends before. */
  async take(count: number): Promise<Uint8Array> {
    const taken = new Uint8Array(count);
    for (let length = 0; length < count;) {
      const piece = await this.some(count - length);
      taken.set(piece, length);
      length += piece.length;
    }
    return taken;
  }

  async close(): Promise<void> {
    // Of a connection that is gone already, this rejects.
    await this.#reader.cancel().catch(() => {});
  }
}
