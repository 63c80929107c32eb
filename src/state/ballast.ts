// The ballast: a file of really allocated bytes beside the database. Giving it up is what lets a full host still write
// down that something was released.
import { closeSync, constants, fsyncSync, openSync, rmSync, statfsSync, statSync, writeSync } from "node:fs";

const CHUNK_BYTES = 64 * 1024;

export class Ballast {
  readonly #path: string;
  readonly #bytes: number;

  constructor(path: string, bytes: number) {
    this.#path = path;
    this.#bytes = bytes;
  }

  /** Frees the bytes. */
  release(): void {
    rmSync(this.#path, { force: true });
  }

  /**
   * Makes the file unless it is there in full. False when the file system could not take it twice over: a ballast that
   * uses up the last free bytes would be the cause of what it guards against.
   */
  make(): boolean {
    if (this.#present()) return true;
    const room = statfsSync(this.#path.slice(0, this.#path.lastIndexOf("/")));
    if (room.bavail * room.bsize < 2 * this.#bytes) return false;
    try {
      this.#write();
      return true;
    } catch (error) {
      this.release();
      if (hasCode(error, "ENOSPC") || hasCode(error, "EDQUOT")) return false;
      throw error;
    }
  }

  #present(): boolean {
    const found = statSync(this.#path, { throwIfNoEntry: false });
    return found !== undefined && found.blocks * 512 >= this.#bytes;
  }

  #write(): void {
    const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_TRUNC | constants.O_NOFOLLOW;
    const file = openSync(this.#path, flags, 0o600);
    try {
      // Random, because a file system may store zeros or repeats as nothing.
      const chunk = new Uint8Array(CHUNK_BYTES);
      for (let written = 0; written < this.#bytes;) {
        crypto.getRandomValues(chunk);
        written += writeSync(file, chunk, 0, Math.min(CHUNK_BYTES, this.#bytes - written));
      }
      fsyncSync(file);
    } finally {
      closeSync(file);
    }
  }
}

function hasCode(error: unknown, code: string): boolean {
  return error instanceof Error && "code" in error && error.code === code;
}
