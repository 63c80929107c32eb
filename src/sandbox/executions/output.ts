// One output of an execution: its newest bytes in memory until they are on disk and read, the ring file below, and the
// pump between the two. What is not on disk has not been granted back to the guest, so memory is bounded by the credit.
import { limits } from "../../config/limits.ts";
import type { Loan } from "../../contracts/channel.ts";
import type { OutputWindow } from "../../contracts/executions.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { RingFile } from "./ring-file.ts";

/** Smaller pieces are copied together, so that neither many of them nor one of a large buffer cost much. */
const SMALL_PIECE_BYTES = 4 * 1024;
const GATHERED_BYTES = 16 * 1024;
/** So are those of which so many would fit the buffer that they keep. */
const PIECES_A_BUFFER_MAX = 16;
/** Where much comes, what is less than this waits a moment for more before it is written … */
const WORTH_WRITING_BYTES = 1024 * 1024;
/** … which is where so much has just been written at once. */
const MUCH_BYTES = 64 * 1024;
const GATHERING_MS = 2;
/** A process that may be held up runs ahead by this share of a ring; the rest is kept for a reader that comes back. */
const AHEAD_SHARE = 4;
const AHEAD_MAX_BYTES = limits.executionRingMaxBytes / AHEAD_SHARE;

interface Segment {
  readonly offset: number;
  /** A view of the bytes. */
  data: Uint8Array;
  /** What follows the view in a buffer of our own; 0 for a buffer of somebody else. */
  spareBytes: number;
  /** Where the bytes are on loan; nothing once somebody may keep them. */
  loan: Loan | undefined;
  /** How many are looking at bytes that they do not keep. */
  borrowers: number;
  /** It is needed here no more. */
  isDropped: boolean;
}

/** Some of an output. */
export interface Excerpt {
  readonly offset: number;
  /** Must not be written to. */
  readonly data: Uint8Array;
  /** To be called by who has borrowed the bytes, when they are not looked at any more. */
  readonly done: () => void;
}

/** Those who gave the bytes of a stretch, and wait until all of it is on disk. */
interface Waiter {
  readonly from: number;
  end: number;
  readonly promise: Promise<void>;
  readonly stored: () => void;
}

export interface OutputHooks {
  /** Bytes arrived. */
  readonly arrived: () => void;
  /** Bytes up to `keptEnd` survive the agent now. */
  readonly kept: () => void;
  /** Whether somebody reads who has not come to the end, so that the newest bytes are better kept in memory. */
  readonly lagging: () => boolean;
  /** Called once for each series of failures; the write is tried again until it succeeds. */
  readonly failing: (error: unknown) => void;
}

export class Output {
  readonly #file: RingFile;
  readonly #hooks: OutputHooks;
  /** Bytes in order of offset; the first of them may be on disk already. */
  readonly #segments: Segment[] = [];
  readonly #waiters: Waiter[] = [];
  #end: number;
  #pumping: Promise<void> | null = null;
  #closed = false;
  #isGathering = false;
  #pausing: { readonly timer: Timer; readonly wake: () => void } | null = null;
  /** The byte that the reader who holds the process up has come to; null: nobody does. */
  #pace: number | null = null;

  constructor(file: RingFile, hooks: OutputHooks) {
    this.#file = file;
    this.#hooks = hooks;
    this.#end = file.window.end;
  }

  /** What can be read. */
  get window(): OutputWindow {
    const { base } = this.#file.window;
    return { base: Math.max(base, this.#end - this.#file.wholeBytes), end: this.#end };
  }

  /** One past the last byte that survives the agent. */
  get keptEnd(): number {
    return this.#file.promisedEnd;
  }

  /** The pace at which nothing more is written: what an earlier agent's reader had come to is not known. */
  get paceAfterRestart(): number {
    return Math.max(0, this.#end - this.#aheadBytes);
  }

  /**
   * Takes bytes; those below the end are here already and dropped. Resolves when the bytes are on disk, which is also
   * what bounds memory: bytes that come again are not on disk for that. Those on loan are given back.
   */
  append(offset: number, data: Uint8Array, loan?: Loan): Promise<void> {
    const end = offset + data.length;
    const from = Math.max(offset, this.#end);
    const fresh = this.#closed ? data.subarray(data.length) : data.subarray(from - offset);
    loan?.giveBack(data.length - fresh.length);
    if (this.#closed || end <= this.#file.window.end) return Promise.resolve();
    if (fresh.length === 0) return this.#storedUpTo(end);
    this.#push(from, fresh, loan);
    const stored = this.#storedUpTo(end);
    if (this.#isWorthWriting) this.#wakeGathering();
    this.#pump();
    this.#hooks.arrived();
    return stored;
  }

  /** Sets how far the process may run ahead of: an offset, or null for as far as it likes. */
  setPace(offset: number | null): void {
    this.#pace = offset;
    this.#pump();
  }

  /**
   * The bytes from `offset`, or from the first byte after it that is kept; at most `maxBytes`. Null when there are none
   * yet. Who does not borrow them may keep them.
   */
  async read(offset: number, maxBytes: number, isBorrowed = false): Promise<Excerpt | null> {
    for (;;) {
      const from = Math.max(offset, this.window.base);
      if (from >= this.#end) return null;
      const segment = this.#segments.find((one) => one.offset + one.data.length > from);
      if (segment !== undefined && segment.offset <= from) {
        const data = segment.data.subarray(from - segment.offset, from - segment.offset + maxBytes);
        return { offset: from, data, done: lend(segment, isBorrowed) };
      }
      const stored = this.#file.window.end;
      if (segment !== undefined && from >= stored) offset = segment.offset;
      else {
        const data = await this.#file.read(from, Math.min(maxBytes, limits.executionReadBytes));
        if (data.length > 0) return { offset: from, data, done: nothing };
        if (from >= this.window.base) throw new AgentError("INTERNAL", "an output on disk was cut short");
      }
    }
  }

  /** Everybody who reads has read everything: what is on disk need not be in memory. */
  allRead(): void {
    this.#drop(0);
  }

  /** One past the last byte that is on disk, whether or not it survives the agent. */
  get storedEnd(): number {
    return this.#file.window.end;
  }

  /** What it takes on the disk. */
  get diskBytes(): number {
    return this.#file.sizeBytes;
  }

  /** True when nothing is being written, and nothing is left to be. */
  get idle(): boolean {
    return this.#pumping === null && this.#file.promisedEnd === this.#end;
  }

  /** Resolves when everything that may be written is on disk and survives the agent. */
  async settled(): Promise<void> {
    while (this.#pumping !== null) {
      this.#wakeGathering();
      await this.#pumping;
    }
  }

  /** Takes nothing more. Resolves when what may be written is on disk, or cannot be; the file stays. */
  async close(): Promise<void> {
    this.#closed = true;
    this.#pausing?.wake();
    await this.#pumping;
    for (const { stored } of this.#waiters.splice(0)) stored();
    await this.#file.close();
  }

  /** Gives back the descriptor; reading opens the file again. */
  async rest(): Promise<void> {
    if (this.#pumping === null) await this.#file.close();
  }

  /** Removes the file. Its room is given back in this call when the output is `idle`. */
  async remove(): Promise<void> {
    this.#closed = true;
    this.#segments.length = 0;
    if (this.#pumping !== null) await this.close();
    await this.#file.remove();
  }

  /** One promise for a stretch of small pieces, so that neither they nor bytes that come again add up. */
  #storedUpTo(end: number): Promise<void> {
    const last = this.#waiters.at(-1);
    if (last !== undefined && end - last.from <= GATHERED_BYTES) {
      last.end = Math.max(last.end, end);
      return last.promise;
    }
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiters.push({ from: last?.end ?? this.#file.window.end, end, promise, stored: resolve });
    return promise;
  }

  #push(offset: number, data: Uint8Array, loan: Loan | undefined): void {
    const last = this.#segments.at(-1);
    if (last !== undefined && last.spareBytes >= data.length && last.offset + last.data.length === offset) {
      const whole = new Uint8Array(last.data.buffer, last.data.byteOffset, last.data.length + data.length);
      whole.set(data, last.data.length);
      last.data = whole;
      last.spareBytes -= data.length;
      loan?.giveBack(data.length);
    } else if (data.length < SMALL_PIECE_BYTES) {
      const buffer = new Uint8Array(last === undefined ? SMALL_PIECE_BYTES : GATHERED_BYTES);
      buffer.set(data);
      const spareBytes = buffer.length - data.length;
      this.#segments.push(segment(offset, buffer.subarray(0, data.length), { spareBytes }));
      loan?.giveBack(data.length);
    } else if (data.length * PIECES_A_BUFFER_MAX < data.buffer.byteLength) {
      this.#segments.push(segment(offset, new Uint8Array(data), {}));
      loan?.giveBack(data.length);
    } else {
      this.#segments.push(segment(offset, data, { loan }));
    }
    this.#end = offset + data.length;
  }

  #pump(): void {
    if (this.#pumping !== null || this.#closed) return;
    if (this.#batch() === null) return;
    this.#pumping = this.#write().finally(() => {
      this.#pumping = null;
      // What came between the last look and now.
      this.#pump();
    });
  }

  async #write(): Promise<void> {
    for (let batch = this.#batch(); batch !== null; batch = this.#batch()) {
      const { offset, pieces } = batch;
      const written = await this.#persistently(async () => {
        await this.#file.write(offset, pieces);
        if (this.#file.mustKeep) await this.#keep();
      });
      if (!written) return;
      this.#stored();
      if (this.#file.window.end - offset >= MUCH_BYTES) await this.#gather();
    }
    await this.#persistently(() => this.#keep());
  }

  /** Waits a moment for more: many small writes would cost more than what they write. */
  async #gather(): Promise<void> {
    if (this.#isWorthWriting || this.#closed) return;
    this.#isGathering = true;
    await this.#pause(GATHERING_MS);
    this.#isGathering = false;
  }

  get #isWorthWriting(): boolean {
    return this.#end - this.#file.window.end >= WORTH_WRITING_BYTES;
  }

  #wakeGathering(): void {
    if (this.#isGathering) this.#pausing?.wake();
  }

  async #keep(): Promise<void> {
    await this.#file.keep();
    this.#hooks.kept();
  }

  /**
   * Tries again until it succeeds: a disk that is full now holds the process up and loses nothing. False when it failed
   * and the output is closed.
   */
  async #persistently(attempt: () => Promise<void>): Promise<boolean> {
    for (let failed = false; ; failed = true) {
      try {
        await attempt();
        return true;
      } catch (error) {
        if (!failed) this.#hooks.failing(error);
        if (this.#closed) return false;
        await this.#pause(limits.executionRetryMs);
      }
    }
  }

  async #pause(ms: number): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#pausing = { timer: setTimeout(resolve, ms), wake: resolve };
    await promise;
    clearTimeout(this.#pausing.timer);
    this.#pausing = null;
  }

  /** The next bytes for the disk, as far as the pace allows, all without a gap; null when there are none. */
  #batch(): { readonly offset: number; readonly pieces: readonly Uint8Array[] } | null {
    const stored = this.#file.window.end;
    const first = this.#segments.findIndex((segment) => segment.offset + segment.data.length > stored);
    const segment = this.#segments[first];
    if (segment === undefined) return null;
    const offset = Math.max(segment.offset, stored);
    const room = Math.min(this.#file.batchMaxBytes, this.#ahead() - offset);
    const pieces: Uint8Array[] = [];
    let at = offset;
    for (let n = first; n < this.#segments.length && at < offset + room; n++) {
      const next = this.#segments[n] as Segment;
      if (next.offset > at) break;
      pieces.push(next.data.subarray(at - next.offset, offset + room - next.offset));
      at = Math.min(next.offset + next.data.length, offset + room);
    }
    return pieces.length === 0 ? null : { offset, pieces };
  }

  /** Offset up to which bytes may be written: the reader that sets the pace must find what it has not confirmed. */
  #ahead(): number {
    if (this.#pace === null) return Number.POSITIVE_INFINITY;
    this.#file.makeRoom(this.#file.batchMaxBytes);
    return this.#pace + this.#aheadBytes;
  }

  get #aheadBytes(): number {
    return Math.min(AHEAD_MAX_BYTES, this.#file.keptMaxBytes / AHEAD_SHARE);
  }

  #stored(): void {
    const stored = this.#file.window.end;
    while ((this.#waiters[0]?.end ?? Number.POSITIVE_INFINITY) <= stored) this.#waiters.shift()?.stored();
    this.#drop(this.#hooks.lagging() ? limits.executionTailBytes : 0);
  }

  /** Forgets what is on disk, but for the newest `sparedBytes` of it. */
  #drop(sparedBytes: number): void {
    const below = this.#file.window.end - sparedBytes;
    let count = 0;
    for (const { offset, data } of this.#segments) {
      if (offset + data.length > below) break;
      count += 1;
    }
    for (const segment of this.#segments.splice(0, count)) {
      segment.isDropped = true;
      giveBackUnused(segment);
    }
  }
}

function segment(
  offset: number,
  data: Uint8Array,
  { spareBytes = 0, loan }: { readonly spareBytes?: number; readonly loan?: Loan | undefined },
): Segment {
  return { offset, data, spareBytes, loan, borrowers: 0, isDropped: false };
}

/** Somebody looks at its bytes: until what is returned is called where they are borrowed, else as long as they like. */
function lend(segment: Segment, isBorrowed: boolean): () => void {
  if (!isBorrowed) segment.loan = undefined;
  if (segment.loan === undefined) return nothing;
  segment.borrowers += 1;
  return () => {
    segment.borrowers -= 1;
    giveBackUnused(segment);
  };
}

function giveBackUnused({ isDropped, borrowers, loan, data }: Segment): void {
  if (isDropped && borrowers === 0) loan?.giveBack(data.length);
}

const nothing = (): void => undefined;
