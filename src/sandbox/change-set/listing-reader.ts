// Reads a stored listing: the head at once, the entries as a cursor that moves in path order and never holds more than a
// piece of the file.
import { open, type FileHandle } from "node:fs/promises";
import { AgentError } from "../../errors/agent-error.ts";
import { LISTING_END, type ListingEntry, type ListingHead, parseEntry, parseHead } from "./listing-format.ts";

const PIECE_BYTES = 128 * 1024;
/** 64 paths of 4,096 bytes, each byte escaped to six at worst, and the fixed fields. */
const HEAD_MAX_BYTES = 2 * 1024 * 1024;
const NEWLINE = 0x0a;

const corrupt = (cause: unknown): AgentError => new AgentError("BASELINE_CORRUPT", undefined, { cause });

export class ListingReader {
  #rest = "";
  #batch: ListingEntry[] = [];
  #next = 0;
  #read = 0;
  #ended = false;
  readonly #decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

  private constructor(
    private readonly file: FileHandle,
    readonly head: ListingHead,
    private position: number,
  ) {}

  /** Rejects with `BASELINE_MISSING` when there is no file and with `BASELINE_CORRUPT` when it has no head. */
  static async open(path: string): Promise<ListingReader> {
    const file = await open(path, "r").catch((error: NodeJS.ErrnoException) => {
      throw error.code === "ENOENT" ? new AgentError("BASELINE_MISSING") : error;
    });
    try {
      const line = await readHeadLine(file);
      return new ListingReader(file, parseHead(line), line.length);
    } catch (error) {
      await file.close();
      throw error instanceof AgentError ? error : corrupt(error);
    }
  }

  /** The entry under the cursor, null at the end; only valid while `needsFill` is false. */
  get current(): ListingEntry | null {
    return this.#batch[this.#next] ?? null;
  }

  get needsFill(): boolean {
    return this.#next >= this.#batch.length && !this.#ended;
  }

  advance(): void {
    this.#next += 1;
  }

  /** Reads the next piece. Rejects with `BASELINE_CORRUPT` when the file is not what was written. */
  async fill(): Promise<void> {
    this.#batch = [];
    this.#next = 0;
    while (this.needsFill) {
      // A read from the page cache comes back without a turn of the event loop, and others are waiting for one.
      await new Promise((resolve) => setImmediate(resolve));
      const piece = await this.#piece();
      try {
        if (piece === null) throw new Error(`the listing ends without ${JSON.stringify(LISTING_END)}`);
        this.#parse(piece);
      } catch (error) {
        throw corrupt(error);
      }
    }
  }

  async close(): Promise<void> {
    await this.file.close();
  }

  async #piece(): Promise<Buffer | null> {
    const buffer = Buffer.allocUnsafe(PIECE_BYTES);
    const { bytesRead } = await this.file.read(buffer, 0, buffer.length, this.position);
    this.position += bytesRead;
    return bytesRead === 0 ? null : buffer.subarray(0, bytesRead);
  }

  #parse(piece: Buffer): void {
    const lines = (this.#rest + this.#decoder.decode(piece, { stream: true })).split("\n");
    this.#rest = lines.pop() as string;
    for (const line of lines) {
      if (line.startsWith("[")) this.#batch.push(parseEntry(line.endsWith(",") ? line.slice(0, -1) : line));
      // The last line, and the empty one before it when there are no entries at all.
      else if (line === "]}") this.#ended = true;
      else if (line !== "") throw new Error("a line that is no entry");
    }
    this.#read += this.#batch.length;
    if (this.#ended && this.#read !== this.head.entries) {
      throw new Error(`the listing has ${this.#read} entries, its head says ${this.head.entries}`);
    }
  }
}

async function readHeadLine(file: FileHandle): Promise<Buffer> {
  for (let size = 4096; size <= HEAD_MAX_BYTES * 2; size *= 8) {
    const buffer = Buffer.allocUnsafe(size);
    const { bytesRead } = await file.read(buffer, 0, size, 0);
    const end = buffer.subarray(0, bytesRead).indexOf(NEWLINE);
    if (end >= 0) return buffer.subarray(0, end + 1);
    if (bytesRead < size) break;
  }
  throw new Error("no head line");
}
