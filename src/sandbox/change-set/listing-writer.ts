// Writes a listing while it arrives. The file appears under its name whole or not at all.
import { open, rename, rm, type FileHandle } from "node:fs/promises";
import { dirname } from "node:path";
import type { ManifestEntry, ManifestSink } from "../../contracts/channel.ts";
import type { CrashHook } from "../crash-points.ts";
import { EntryEncoder } from "./entry-encoder.ts";
import { headLine, LISTING_END, type ListingHead } from "./listing-format.ts";
import { ByteOrder } from "./paths.ts";

const EMPTY_HEAD = { mode: "sha256", takenAtUnixMs: 0, digest: new Uint8Array(), files: 0, entries: 0 } as const;

export class ListingWriter implements ManifestSink {
  readonly #encoder = new EntryEncoder();
  #entries = 0;
  readonly #order = new ByteOrder();
  /** Pieces that arrived since the latest `drained` call … */
  #overflow: Buffer[] = [];
  /** … and those of before, on their way into the file while the next arrive. */
  #writing: Promise<void> = Promise.resolve();
  #position: number;

  private constructor(
    private readonly target: string,
    private readonly temporary: string,
    private readonly file: FileHandle,
    private readonly paths: readonly Uint8Array[],
    headBytes: number,
  ) {
    this.#position = headBytes;
  }

  /** One writer of a target at a time; what one that was cut left behind is overwritten. */
  static async create(target: string, paths: readonly Uint8Array[]): Promise<ListingWriter> {
    const temporary = `${target}.new`;
    const file = await open(temporary, "w", 0o600);
    return new ListingWriter(target, temporary, file, paths, headLine({ ...EMPTY_HEAD, paths }).length);
  }

  entry(path: Uint8Array, entry: ManifestEntry): void {
    this.#order.check(path);
    this.#encoder.add(path, entry);
    if (this.#encoder.isFull) this.#overflow.push(this.#encoder.take());
    this.#entries += 1;
  }

  difference(): void {
    throw new Error("a listing that is written whole was answered with a difference");
  }

  async drained(): Promise<void> {
    await this.#writing;
    const pieces = this.#overflow;
    this.#overflow = [];
    this.#writing = this.#writeAll(pieces);
    // Whoever waits next learns of a failure; until then it is not an unhandled one.
    this.#writing.catch(() => undefined);
  }

  /** Makes the file durable under its name. */
  async finish(head: Omit<ListingHead, "entries" | "paths">, crashPoint: CrashHook = () => undefined): Promise<void> {
    await this.drained();
    await this.#writing;
    await this.#write(this.#encoder.take());
    await this.#write(Buffer.from(LISTING_END));
    const line = headLine({ ...head, entries: this.#entries, paths: this.paths });
    await this.file.write(line, 0, line.length, 0);
    await this.file.sync();
    await this.file.close();
    await crashPoint("baseline.written");
    await rename(this.temporary, this.target);
    await syncDirectory(dirname(this.target));
    await crashPoint("baseline.renamed");
  }

  /** Removes what was written. Harmless after `finish`. */
  async discard(): Promise<void> {
    await this.#writing.catch(() => undefined);
    await this.file.close().catch(() => undefined);
    await rm(this.temporary, { force: true });
  }

  async #writeAll(pieces: readonly Buffer[]): Promise<void> {
    for (const piece of pieces) {
      await this.#write(piece);
      this.#encoder.reuse(piece);
    }
  }

  async #write(bytes: Buffer): Promise<void> {
    let offset = 0;
    while (offset < bytes.length) {
      const { bytesWritten } = await this.file.write(bytes, offset, bytes.length - offset, this.#position);
      offset += bytesWritten;
      this.#position += bytesWritten;
    }
  }
}

async function syncDirectory(path: string): Promise<void> {
  const directory = await open(path, "r");
  try {
    await directory.sync();
  } finally {
    await directory.close();
  }
}
