// What a client writes, on its way to the guest: a bounded queue between the requests, which come when they come, and the
// guest, which takes when it can.
import { limits } from "../../config/limits.ts";
import type { ByteSource } from "../../contracts/files.ts";

export class UploadSource implements ByteSource {
  readonly #pieces: Uint8Array[] = [];
  #bytes = 0;
  #hasEnded = false;
  #isClosed = false;
  #wakeReader: (() => void) | null = null;
  #wakeWriter: (() => void) | null = null;

  /** Resolves when more may come; false when nobody takes it any more. */
  async push(piece: Uint8Array): Promise<boolean> {
    this.#pieces.push(piece);
    this.#bytes += piece.length;
    this.#wakeReader?.();
    while (this.#bytes > limits.sftpUnwrittenMaxBytes && !this.#isClosed) {
      await new Promise<void>((resolve) => {
        this.#wakeWriter = resolve;
      });
    }
    return !this.#isClosed;
  }

  /** No more comes. */
  end(): void {
    this.#hasEnded = true;
    this.#wakeReader?.();
  }

  async read(): Promise<Uint8Array | null> {
    for (;;) {
      const piece = this.#pieces.shift();
      if (piece !== undefined) {
        this.#bytes -= piece.length;
        this.#wakeWriter?.();
        return piece;
      }
      if (this.#hasEnded || this.#isClosed) return null;
      await new Promise<void>((resolve) => {
        this.#wakeReader = resolve;
      });
    }
  }

  close(): void {
    this.#isClosed = true;
    this.#pieces.length = 0;
    this.#bytes = 0;
    this.#wakeReader?.();
    this.#wakeWriter?.();
  }
}
