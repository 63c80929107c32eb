// Lines to a descriptor whose reader may be slow, or gone: written as long as they are taken at once, so that the event
// loop never waits for the reader, and what was taken is written even when the process ends the next moment.
import { writeSync } from "node:fs";

/** What a pipe that is ready takes without waiting (POSIX: PIPE_BUF of Linux). */
const PIECE_MAX_BYTES = 4096;
const RETRY_MS = 20;
/** How long the end of the process waits for a reader that does not read. */
const LAST_WAIT_MS = 1_000;

/** Whether a write of at most 4096 bytes to `fd` returns at once; waits for it at most `timeoutMs`. */
export type IsWritable = (fd: number, timeoutMs: number) => boolean;

export interface LineOutputOptions {
  readonly fd: number;
  readonly isWritable: IsWritable;
  /** Lines beyond it are dropped while the reader is behind: a log that is full must not take the agent with it. */
  readonly unwrittenMaxBytes: number;
}

export class LineOutput {
  readonly #options: LineOutputOptions;
  #unwritten: Buffer[] = [];
  #unwrittenBytes = 0;
  #retry: NodeJS.Timeout | null = null;

  constructor(options: LineOutputOptions) {
    this.#options = options;
  }

  /** Writes a line, or keeps it until the reader reads on. */
  write(line: string): void {
    const bytes = Buffer.from(line);
    if (this.#unwrittenBytes + bytes.length > this.#options.unwrittenMaxBytes) return;
    this.#unwritten.push(bytes);
    this.#unwrittenBytes += bytes.length;
    if (this.#retry === null) this.#writeUntil(0);
  }

  /** Writes what is left, for the end of the process: waits for the reader, but not for ever. */
  flush(): void {
    this.#writeUntil(performance.now() + LAST_WAIT_MS);
  }

  #writeUntil(deadlineMs: number): void {
    const { fd, isWritable } = this.#options;
    for (let first = this.#unwritten[0]; first !== undefined; first = this.#unwritten[0]) {
      const waitMs = Math.ceil(deadlineMs - performance.now());
      if (!isWritable(fd, Math.max(0, waitMs))) return this.#again();
      const written = this.#writePiece(first);
      if (written === null) return this.#again();
      this.#unwrittenBytes -= written;
      if (written === first.length) this.#unwritten.shift();
      else this.#unwritten[0] = first.subarray(written);
    }
  }

  /** How many bytes of the line are done with; null: none now. */
  #writePiece(line: Buffer): number | null {
    try {
      return writeSync(this.#options.fd, line, 0, Math.min(line.length, PIECE_MAX_BYTES));
    } catch (error) {
      // Not ready after all, as a descriptor that does not wait says; somebody else wrote to the same pipe.
      if ((error as NodeJS.ErrnoException).code === "EAGAIN") return null;
      // A reader that went away, or a disk that is full, is no reason to end.
      return line.length;
    }
  }

  #again(): void {
    this.#retry ??= setTimeout(() => {
      this.#retry = null;
      this.#writeUntil(0);
    }, RETRY_MS).unref();
  }
}
