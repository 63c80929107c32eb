// One output of an execution on the host's disk: a ring of its newest bytes at absolute offsets, behind a small header
// that says which bytes are whole. An agent that is killed at any moment finds every byte that the header speaks of.
//
// The file holds more than it promises: a ninth of it is spare, and nothing beyond that is ever written ahead of the
// header. So neither a write in progress nor one that was cut can touch a byte that is still promised.
import { constants } from "node:fs";
import { type FileHandle, open, rm } from "node:fs/promises";
import type { OutputWindow } from "../../contracts/executions.ts";
import type { RingBudget } from "./ring-budget.ts";

const MAGIC = 0x46_58_52_31;
const HEADER_BYTES = 64;
const SPARE_SHARE = 9;

const OPEN_FLAGS = constants.O_RDWR | constants.O_NOFOLLOW;

export class RingFile {
  /** How many of its newest bytes the ring keeps once it is whole. */
  readonly wholeBytes: number;
  readonly #path: string;
  readonly #budget: RingBudget;
  #opened: Promise<FileHandle> | null = null;
  #exists: boolean;
  /** Bytes of the ring; 0 before anything was written. */
  #sizeBytes: number;
  /** Offset of the byte at the beginning of the ring. */
  #origin: number;
  #base: number;
  #end: number;
  /** What the header on disk says. */
  #promisedEnd: number;
  /** Whether it could grow when it was last needed, so that nothing has been lost since. */
  #growing = true;

  private constructor(path: string, budget: RingBudget, keptMaxBytes: number, found: Header | null) {
    this.#path = path;
    this.#budget = budget;
    this.wholeBytes = keptMaxBytes;
    this.#exists = found !== null;
    this.#sizeBytes = found?.sizeBytes ?? 0;
    this.#origin = found?.origin ?? 0;
    this.#base = found?.base ?? 0;
    this.#end = this.#promisedEnd = found?.end ?? 0;
    budget.takeAlways(this.#sizeBytes);
  }

  /** A ring of an output that has just begun; its file is made with the first byte. */
  static create(path: string, budget: RingBudget, keptMaxBytes = budget.sizes.keptMaxBytes): RingFile {
    return new RingFile(path, budget, keptMaxBytes, null);
  }

  /** The ring that an earlier agent process left, or an empty one where there is none or it makes no sense. */
  static async find(path: string, budget: RingBudget, keptMaxBytes = budget.sizes.keptMaxBytes): Promise<RingFile> {
    return new RingFile(path, budget, keptMaxBytes, await readHeader(path, sizeOf(keptMaxBytes)));
  }

  /** What it takes on the disk. */
  get sizeBytes(): number {
    return this.#sizeBytes;
  }

  /** The bytes that can be read. */
  get window(): OutputWindow {
    return { base: this.#base, end: this.#end };
  }

  /** One past the last byte that survives the agent. */
  get promisedEnd(): number {
    return this.#promisedEnd;
  }

  /** How many of its newest bytes the ring keeps: as it is, once it has ceased to grow. */
  get keptMaxBytes(): number {
    return this.#growing ? this.wholeBytes : promise(this.#sizeBytes);
  }

  /** How much may be written at once. */
  get batchMaxBytes(): number {
    return spare(Math.max(this.#sizeBytes, this.#budget.sizes.stepBytes)) / 2;
  }

  /** True when so much was written since the last `keep` that no more may be. */
  get mustKeep(): boolean {
    return this.#end - this.#promisedEnd > this.batchMaxBytes;
  }

  /**
   * Writes the bytes at `offset`, which is the end of the ring, or beyond it where bytes were lost. At most
   * `batchMaxBytes`, and not while `mustKeep`. Rejects with what the file system says; then nothing has changed.
   */
  async write(offset: number, pieces: readonly Uint8Array[]): Promise<void> {
    const bytes = pieces.reduce((sum, piece) => sum + piece.length, 0);
    const file = await this.#open();
    if (offset !== this.#end) await this.#restart(file, offset);
    this.makeRoom(bytes);
    let rest = pieces;
    for (let at = offset; at < offset + bytes;) {
      this.#unroll(at);
      const position = this.#position(at);
      const [run, later] = split(rest, this.#sizeBytes - position);
      await writeAll(file, run, HEADER_BYTES + position);
      at += Math.min(this.#sizeBytes - position, offset + bytes - at);
      rest = later;
    }
    this.#end = offset + bytes;
    this.#base = Math.max(this.#base, this.#end - promise(this.#sizeBytes));
  }

  /** Makes what was written survive the agent. */
  async keep(): Promise<void> {
    if (this.#promisedEnd === this.#end) return;
    const end = this.#end;
    await this.#writeHeader(await this.#open(), end);
    this.#promisedEnd = end;
  }

  /** Reads from `offset`, which lies in the window, at most `maxBytes`; empty when the bytes have gone meanwhile. */
  async read(offset: number, maxBytes: number): Promise<Uint8Array> {
    const file = await this.#open();
    const position = this.#position(offset);
    const bytes = Math.min(maxBytes, this.#end - offset, this.#sizeBytes - position);
    const buffer = new Uint8Array(bytes);
    const { bytesRead } = await file.read(buffer, 0, bytes, HEADER_BYTES + position);
    return offset < this.#base ? new Uint8Array(0) : buffer.subarray(0, bytesRead);
  }

  /** Gives the descriptor back; the next call opens the file again. */
  async close(): Promise<void> {
    const opened = this.#opened;
    this.#opened = null;
    const file = await opened?.catch(() => null);
    await file?.close();
  }

  /** Removes the file and gives its room back. Nothing may be called afterwards. */
  async remove(): Promise<void> {
    this.#budget.give(this.#sizeBytes);
    this.#sizeBytes = 0;
    await this.close();
    if (this.#exists) await rm(this.#path, { force: true });
  }

  #open(): Promise<FileHandle> {
    if (this.#opened === null) {
      const flags = this.#exists ? OPEN_FLAGS : OPEN_FLAGS | constants.O_CREAT | constants.O_TRUNC;
      const opened = open(this.#path, flags, 0o600);
      this.#opened = opened;
      opened.then(
        () => {
          this.#exists = true;
        },
        () => {
          if (this.#opened === opened) this.#opened = null;
        },
      );
    }
    return this.#opened;
  }

  /** Begins anew at an offset beyond the end: what lies before it cannot be read together with what follows. */
  async #restart(file: FileHandle, offset: number): Promise<void> {
    const { sizeBytes } = this.#header(offset);
    await writeAll(file, [encodeHeader({ sizeBytes, origin: offset, base: offset, end: offset })], 0);
    this.#origin = this.#base = this.#end = this.#promisedEnd = offset;
  }

  /**
   * Grows the ring while it would lose bytes to the next `bytes` otherwise. A ring that has begun again at its beginning
   * can do so only where its bytes lie in order.
   */
  makeRoom(bytes: number): void {
    const { stepBytes } = this.#budget.sizes;
    if (this.#sizeBytes === 0) {
      this.#budget.takeAlways(stepBytes);
      this.#sizeBytes = stepBytes;
    }
    const used = this.#end - this.#origin;
    this.#growing = used <= this.#sizeBytes;
    while (this.#growing && used + bytes > promise(this.#sizeBytes)) this.#growing = this.#grow();
  }

  /** Where the ring would begin again at `at`, its bytes lie in order, so that it can go on growing instead. */
  #unroll(at: number): void {
    const sizeBytes = this.#sizeBytes;
    const isTurn = at - this.#origin >= sizeBytes && this.#position(at) === 0;
    if (isTurn && this.#grow()) this.#origin = at - sizeBytes;
  }

  /** One step; false when it is whole or there is no room. */
  #grow(): boolean {
    const { stepBytes } = this.#budget.sizes;
    if (this.#sizeBytes >= sizeOf(this.wholeBytes) || !this.#budget.take(stepBytes, this.#sizeBytes)) return false;
    this.#sizeBytes += stepBytes;
    return true;
  }

  #position(offset: number): number {
    return (offset - this.#origin) % this.#sizeBytes;
  }

  #header(end: number): Header {
    return { sizeBytes: this.#sizeBytes, origin: this.#origin, base: this.#base, end };
  }

  async #writeHeader(file: FileHandle, end: number): Promise<void> {
    await writeAll(file, [encodeHeader(this.#header(end))], 0);
  }
}

interface Header {
  readonly sizeBytes: number;
  readonly origin: number;
  readonly base: number;
  readonly end: number;
}

/** The first `room` bytes of the pieces, and those after. */
function split(pieces: readonly Uint8Array[], room: number): [Uint8Array[], Uint8Array[]] {
  const before: Uint8Array[] = [];
  const after: Uint8Array[] = [];
  let left = room;
  for (const piece of pieces) {
    if (left > 0) before.push(piece.subarray(0, left));
    if (piece.length > left) after.push(piece.subarray(left));
    left = Math.max(0, left - piece.length);
  }
  return [before, after];
}

/** The size of a ring that keeps so much. */
function sizeOf(keptMaxBytes: number): number {
  return keptMaxBytes + keptMaxBytes / (SPARE_SHARE - 1);
}

function spare(sizeBytes: number): number {
  return sizeBytes / SPARE_SHARE;
}

function promise(sizeBytes: number): number {
  return sizeBytes - spare(sizeBytes);
}

function encodeHeader({ sizeBytes, origin, base, end }: Header): Uint8Array {
  const header = Buffer.alloc(HEADER_BYTES);
  header.writeUInt32BE(MAGIC, 0);
  [sizeBytes, origin, base, end].forEach((value, n) => header.writeBigUInt64BE(BigInt(value), 8 + 8 * n));
  return header;
}

function decodeHeader(header: Buffer, maxBytes: number): Header | null {
  if (header.length < HEADER_BYTES || header.readUInt32BE(0) !== MAGIC) return null;
  const [sizeBytes, origin, base, end] = [0, 1, 2, 3].map((n) => Number(header.readBigUInt64BE(8 + 8 * n))) as [
    number,
    number,
    number,
    number,
  ];
  const ordered = origin <= base && base <= end && end - base <= sizeBytes && Number.isSafeInteger(end);
  return ordered && sizeBytes <= maxBytes ? { sizeBytes, origin, base, end } : null;
}

async function readHeader(path: string, maxBytes: number): Promise<Header | null> {
  let file: FileHandle;
  try {
    file = await open(path, OPEN_FLAGS);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return null;
    throw error;
  }
  try {
    const header = Buffer.alloc(HEADER_BYTES);
    const { bytesRead } = await file.read(header, 0, HEADER_BYTES, 0);
    return decodeHeader(header.subarray(0, bytesRead), maxBytes);
  } finally {
    await file.close();
  }
}

async function writeAll(file: FileHandle, pieces: readonly Uint8Array[], position: number): Promise<void> {
  let rest = [...pieces];
  let at = position;
  while (rest.length > 0) {
    let { bytesWritten } = await file.writev(rest, at);
    at += bytesWritten;
    rest = rest.flatMap((piece) => {
      const skip = Math.min(bytesWritten, piece.length);
      bytesWritten -= skip;
      return skip === piece.length ? [] : [piece.subarray(skip)];
    });
  }
}
