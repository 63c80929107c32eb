// A file that a client has opened. Requests that follow one another are one stream from or to the guest, whose bytes come
// ahead of the next request; one that jumps ends the stream and begins another. A handle stands for a path without links.
import { limits } from "../../config/limits.ts";
import type { FileAttributes, FileDownload, FileEntry } from "../../contracts/files.ts";
import type { FileSystem } from "./file-system.ts";
import { SftpRefusal, Status } from "./status.ts";
import { UploadSource } from "./upload-source.ts";

const SPAN_GROWTH = 4;
const NO_BYTES = new Uint8Array(0);

export interface OpenMode {
  readonly read: boolean;
  readonly write: boolean;
  /** Every write goes to the end. */
  readonly append: boolean;
}

/** A part of the file on its way to the client; it is over when `offset` has come to `end`. */
interface Reading {
  readonly download: FileDownload;
  /** Of the next byte. */
  offset: number;
  readonly end: number;
  /** Bytes that were asked for in one go; infinite: to the end of the file. */
  readonly span: number;
  /** What has come and was not taken. */
  rest: Uint8Array;
}

interface Writing {
  readonly source: UploadSource;
  /** Of the next byte. */
  offset: number;
  readonly done: Promise<unknown>;
}

/** Every method rejects with `AgentError` or `SftpRefusal`; one call at a time. */
export class OpenFile {
  readonly #files: FileSystem;
  readonly #path: Uint8Array;
  readonly #mode: OpenMode;
  #reading: Reading | null = null;
  #writing: Writing | null = null;
  /** What went wrong with bytes that the client believes to be written. */
  #untold: unknown = null;

  constructor(files: FileSystem, path: Uint8Array, mode: OpenMode) {
    this.#files = files;
    this.#path = path;
    this.#mode = mode;
  }

  get isWriting(): boolean {
    return this.#writing !== null;
  }

  /** Begins to read at the start, which tells whether it can be read at all. */
  async begin(): Promise<void> {
    await this.#startReading(0, Number.POSITIVE_INFINITY);
  }

  /** Up to `length` bytes from `offset` on; fewer only at the end of the file, null beyond it. */
  async read(offset: number, length: number): Promise<Uint8Array | null> {
    if (!this.#mode.read) throw new SftpRefusal(Status.permissionDenied, "the file is not open for reading");
    await this.settle();
    const pieces: Uint8Array[] = [];
    let missing = length;
    while (missing > 0) {
      const piece = await this.#next(offset + length - missing, missing);
      if (piece === null) break;
      pieces.push(piece);
      missing -= piece.length;
    }
    if (pieces.length === 0) return length === 0 ? NO_BYTES : null;
    return pieces.length === 1 ? pieces[0]! : Buffer.concat(pieces);
  }

  /** Resolves when the bytes are on their way, as far as there is room for them. */
  async write(offset: number, data: Uint8Array): Promise<void> {
    if (!this.#mode.write) throw new SftpRefusal(Status.permissionDenied, "the file is not open for writing");
    const isNext = this.#mode.append || this.#writing?.offset === offset;
    if (!isNext) await this.settle();
    this.#tell();
    this.#stopReading();
    this.#writing ??= this.#startWriting(offset);
    const writing = this.#writing;
    writing.offset += data.length;
    if (!(await writing.source.push(data))) await this.settle();
  }

  async attributes(): Promise<FileEntry> {
    await this.settle();
    return await this.#files.look(this.#path);
  }

  async setAttributes(attributes: FileAttributes): Promise<void> {
    await this.settle();
    this.#stopReading();
    await this.#files.setAttributes(this.#path, attributes);
  }

  /** Resolves when what was written is in the file. */
  async settle(): Promise<void> {
    const writing = this.#writing;
    if (writing !== null) {
      this.#writing = null;
      writing.source.end();
      await writing.done;
    }
    this.#tell();
  }

  /** Ends what is under way, so that others may transfer. What goes wrong is told by the next call. */
  async rest(): Promise<void> {
    this.#stopReading();
    await this.settle().catch((error: unknown) => {
      this.#untold = error;
    });
  }

  /** Drops what is under way. */
  abandon(): void {
    this.#stopReading();
    this.#writing?.source.close();
    this.#writing = null;
  }

  #tell(): void {
    const untold = this.#untold;
    this.#untold = null;
    if (untold !== null) throw untold;
  }

  /** Up to `max` bytes from `offset` on; null at the end of the file. */
  async #next(offset: number, max: number): Promise<Uint8Array | null> {
    const reading = await this.#readingAt(offset, max);
    if (reading === null) return null;
    if (reading.rest.length === 0) reading.rest = (await reading.download.read()) ?? NO_BYTES;
    if (reading.rest.length === 0) return null;
    const piece = reading.rest.subarray(0, max);
    reading.rest = reading.rest.subarray(piece.length);
    reading.offset += piece.length;
    return piece;
  }

  /** The stream whose next byte is that at `offset`; null where the file ends. */
  async #readingAt(offset: number, wanted: number): Promise<Reading | null> {
    const before = this.#reading;
    const follows = before?.offset === offset;
    if (before !== null && follows && offset < before.end) return before;
    // Whoever reads on gets more and more ahead, and whoever jumps little.
    const span =
      before !== null && follows ? before.span * SPAN_GROWTH : Math.max(wanted, limits.sftpReadAheadMinBytes);
    return await this.#startReading(offset, span <= limits.sftpReadAheadMaxBytes ? span : Number.POSITIVE_INFINITY);
  }

  async #startReading(offset: number, span: number): Promise<Reading | null> {
    this.#stopReading();
    const download = await this.#files.read(this.#path, offset, Number.isFinite(span) ? span : undefined);
    if (download.length === 0) download.close();
    else this.#reading = { download, offset, end: offset + download.length, span, rest: NO_BYTES };
    return this.#reading;
  }

  #stopReading(): void {
    this.#reading?.download.close();
    this.#reading = null;
  }

  #startWriting(offset: number): Writing {
    const source = new UploadSource();
    const done = this.#files.write(this.#path, this.#mode.append ? null : offset, source);
    done.then(
      () => source.close(),
      () => source.close(),
    );
    return { source, offset, done };
  }
}
