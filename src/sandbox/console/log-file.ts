// The log of a console as a file that the sandbox's own user may write: no link is followed, only a regular file is read,
// nothing waits for a writer, and no more is held than is asked for.
import { constants } from "node:fs";
import { type FileHandle, open } from "node:fs/promises";
import type { ByteSource } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";

const NEWLINE = 0x0a;
const FIRST_WINDOW_BYTES = 64 * 1024;
const FLAGS = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;

/** The end of a log. */
export interface Tail {
  readonly content: Uint8Array;
  /** Bytes of the log, which is where what comes later begins. */
  readonly end: number;
}

/**
 * The last `lines` lines of a log, or what `maxBytes` hold of them. A log that was begun again is preceded by `<path>.1`.
 * Rejects with `FILE_NOT_REGULAR`.
 */
export async function readTail(path: string, lines: number, maxBytes: number): Promise<Tail> {
  const current = await tailOf(path, lines, maxBytes);
  const missingLines = lines - countLines(current.content);
  const roomBytes = maxBytes - current.content.length;
  if (missingLines <= 0 || roomBytes <= 0 || current.content.length < current.end) return current;
  const earlier = await tailOf(`${path}.1`, missingLines, roomBytes);
  return { content: Buffer.concat([earlier.content, current.content]), end: current.end };
}

async function tailOf(path: string, lines: number, maxBytes: number): Promise<Tail> {
  return await withLog(path, { content: new Uint8Array(0), end: 0 }, async (file, end) => {
    for (let window = Math.min(FIRST_WINDOW_BYTES, maxBytes); ; window = Math.min(window * 4, maxBytes)) {
      const bytes = await readAt(file, Math.max(0, end - window), Math.min(window, end));
      const start = startOfLast(bytes, lines);
      if (start > 0 || window >= end || window === maxBytes) return { content: bytes.subarray(start), end };
    }
  });
}

/** Where the last `lines` lines begin; 0 when there are not more. A last line need not be ended. */
function startOfLast(bytes: Uint8Array, lines: number): number {
  if (lines <= 0) return bytes.length;
  let at = bytes.length - 1;
  for (let left = lines; left > 0; left -= 1) {
    if (at <= 0) return 0;
    at = bytes.lastIndexOf(NEWLINE, at - 1);
    if (at < 0) return 0;
  }
  return at + 1;
}

function countLines(bytes: Uint8Array): number {
  if (bytes.length === 0) return 0;
  let ends = 0;
  for (let at = bytes.indexOf(NEWLINE); at >= 0; at = bytes.indexOf(NEWLINE, at + 1)) ends += 1;
  return bytes[bytes.length - 1] === NEWLINE ? ends : ends + 1;
}

export interface FollowOptions {
  readonly path: string;
  /** What is given first. */
  readonly tail: Tail;
  /** The most that is read at a time. */
  readonly pieceBytes: number;
  /** Resolves when it is time to look again. */
  readonly pause: () => Promise<void>;
  /** Whether nothing can come any more. */
  readonly isOver: () => boolean;
}

/** A log as it grows. What is written between two looks at a log that is begun again may be passed over. */
export class LogFollower implements ByteSource {
  #first: Uint8Array | null;
  #position: number;
  readonly #closed = Promise.withResolvers<void>();
  #isClosed = false;

  constructor(private readonly options: FollowOptions) {
    this.#first = options.tail.content.length === 0 ? null : options.tail.content;
    this.#position = options.tail.end;
  }

  async read(): Promise<Uint8Array | null> {
    const first = this.#first;
    this.#first = null;
    if (first !== null) return first;
    while (!this.#isClosed) {
      // Asked before the look, so that the last that was written is not missed.
      const isOver = this.options.isOver();
      const bytes = await this.#look();
      if (bytes.length > 0) return bytes;
      if (isOver) return null;
      await Promise.race([this.options.pause(), this.#closed.promise]);
    }
    return null;
  }

  close(): void {
    this.#isClosed = true;
    this.#closed.resolve();
  }

  async #look(): Promise<Uint8Array> {
    const { path, pieceBytes } = this.options;
    const bytes = await withLog(path, new Uint8Array(0), async (file, end) => {
      if (end < this.#position) this.#position = 0;
      return await readAt(file, this.#position, Math.min(pieceBytes, end - this.#position));
    });
    this.#position += bytes.length;
    return bytes;
  }
}

/** `absent` when there is no log. `end` is its length in bytes. */
async function withLog<T>(path: string, absent: T, use: (file: FileHandle, end: number) => Promise<T>): Promise<T> {
  let file: FileHandle;
  try {
    file = await open(path, FLAGS);
  } catch (cause) {
    const { code } = cause as NodeJS.ErrnoException;
    if (code === "ENOENT") return absent;
    if (code === "ELOOP") throw notALog(cause);
    throw cause;
  }
  try {
    const found = await file.stat();
    // Of a file with a second name, nobody knows whose it is; none at all has one that was just replaced.
    if (!found.isFile() || found.nlink > 1) throw notALog();
    return await use(file, found.size);
  } finally {
    await file.close();
  }
}

async function readAt(file: FileHandle, position: number, length: number): Promise<Uint8Array> {
  const bytes = new Uint8Array(Math.max(0, length));
  if (bytes.length === 0) return bytes;
  const { bytesRead } = await file.read(bytes, 0, bytes.length, position);
  return bytes.subarray(0, bytesRead);
}

function notALog(cause?: unknown): AgentError {
  return new AgentError("FILE_NOT_REGULAR", "the console's log is not a regular file", { cause });
}
