// A journal of short texts in files of a directory: what was appended is there for the next agent process, however this
// one ends. Each process begins a file of its own, writes into it what still counts of the earlier ones, and then
// removes those; the same again when its file has become long. What a file has is never changed.
import * as fs from "node:fs";
import { mkdir, rm } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";

const { constants } = fs;
// Plain descriptors: a `FileHandle` that is collected before it is closed throws where nobody catches it.
const open = promisify(fs.open);
const write = promisify(fs.write);
const datasync = promisify(fs.fdatasync);
const close = promisify(fs.close);

const NAME = "rows.";
const NUMBER = /^[1-9]\d{0,14}$/;
const OPEN_FLAGS = constants.O_WRONLY | constants.O_APPEND | constants.O_CREAT | constants.O_EXCL;
/** A file that holds so much more than twice what counted when it was begun is long. */
const DEAD_MAX_BYTES = 512 * 1024;
/** What is written at once of what waits, and of what is moved. */
const BATCH_BYTES = 256 * 1024;

export interface JournalHooks {
  /** Every text that still counts, as it is when it is asked for. */
  readonly live: () => Iterable<string>;
  /** Earlier files stay, until another is begun. */
  readonly failing: (error: unknown) => void;
}

interface Waiting {
  readonly bytes: Buffer;
  readonly written: () => void;
  readonly failed: (error: unknown) => void;
}

interface Segment {
  readonly path: string;
  readonly fd: number;
  bytes: number;
}

export class Journal {
  readonly #directory: string;
  readonly #hooks: JournalHooks;
  #segment: Segment | null = null;
  #number = 0;
  /** Files whose content is to be moved, the oldest first. */
  #outdated: string[] = [];
  #longBytes = DEAD_MAX_BYTES;
  #waiting: Waiting[] = [];
  #writing: Promise<void> | null = null;
  #moving: Promise<void> | null = null;
  #closed = false;

  constructor(directory: string, hooks: JournalHooks) {
    this.#directory = directory;
    this.#hooks = hooks;
  }

  /**
   * The texts of earlier processes in their order; `names` are all files of the directory. What is in `before`, other
   * files of it whose content is older, is moved too.
   */
  async *read(names: readonly string[], before: readonly string[]): AsyncGenerator<string> {
    const numbers = names
      .filter(Journal.owns)
      .map((name) => Number(name.slice(NAME.length)))
      .sort((a, b) => a - b);
    this.#number = numbers.at(-1) ?? 0;
    const segments = numbers.map((number) => join(this.#directory, nameOf(number)));
    this.#outdated = [...before.map((name) => join(this.#directory, name)), ...segments];
    for (const path of segments) yield* textsOf(path);
  }

  /** Whether a file of this name belongs to a journal. */
  static owns(name: string): boolean {
    return name.startsWith(NAME) && NUMBER.test(name.slice(NAME.length));
  }

  /**
   * Appends texts, each of which is no text any more when it is cut. Resolves when they survive the agent; rejects with
   * what the file system says, and then some may be there.
   */
  append(...texts: readonly string[]): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    if (this.#closed) reject(new Error("the journal is closed"));
    else {
      // The line begins with its separator, so that one that was cut does not spoil the next.
      const bytes = Buffer.from(texts.map((text) => `\n${text}`).join(""));
      this.#waiting.push({ bytes, written: resolve, failed: reject });
      this.#writing ??= this.#write();
    }
    return promise;
  }

  /** Gives the descriptor back, when everything is written; what is appended later begins another file. */
  async rest(): Promise<void> {
    while (this.#moving !== null || this.#writing !== null) await (this.#moving ?? this.#writing);
    await this.#leaveSegment();
  }

  /** Takes nothing more. Resolves when everything is written. */
  async close(): Promise<void> {
    this.#closed = true;
    await this.rest();
  }

  async #write(): Promise<void> {
    while (this.#waiting.length > 0) {
      const batch = this.#nextBatch();
      try {
        await appendWhole(
          await this.#openSegment(),
          batch.map(({ bytes }) => bytes),
        );
        for (const { written } of batch) written();
      } catch (error) {
        for (const { failed } of batch) failed(error);
      }
    }
    this.#writing = null;
  }

  #nextBatch(): readonly Waiting[] {
    let count = 0;
    for (let bytes = 0; count < this.#waiting.length && bytes < BATCH_BYTES; count++) {
      bytes += this.#waiting[count]?.bytes.length ?? 0;
    }
    return this.#waiting.splice(0, count);
  }

  /** The file to append to. */
  async #openSegment(): Promise<Segment> {
    if (this.#segment !== null && (this.#segment.bytes < this.#longBytes || this.#moving !== null))
      return this.#segment;
    await this.#leaveSegment();
    if (this.#number === 0) await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    this.#number += 1;
    const path = join(this.#directory, nameOf(this.#number));
    const segment = { path, fd: await open(path, OPEN_FLAGS, 0o600), bytes: 0 };
    this.#segment = segment;
    this.#moving = this.#move(segment).finally(() => {
      this.#moving = null;
    });
    return segment;
  }

  async #leaveSegment(): Promise<void> {
    const segment = this.#segment;
    if (segment === null) return;
    this.#segment = null;
    this.#outdated.push(segment.path);
    await close(segment.fd);
  }

  /** Writes what counts into the newest file, which stays that meanwhile, and removes the outdated ones. */
  async #move({ path }: Segment): Promise<void> {
    if (this.#outdated.length === 0) return;
    try {
      this.#longBytes = DEAD_MAX_BYTES + 2 * (await this.#moveLive());
      // Not even where the host loses power are the earlier files needed from here on.
      await sync(path);
      // One after the other: what says that something is forgotten goes after what would bring it back.
      for (let next = this.#outdated[0]; next !== undefined; next = this.#outdated[0]) {
        await rm(next, { force: true });
        this.#outdated.shift();
      }
    } catch (error) {
      if (!this.#closed) this.#hooks.failing(error);
    }
  }

  /** The length of what was moved. */
  async #moveLive(): Promise<number> {
    let length = 0;
    let batch: string[] = [];
    let batchLength = 0;
    for (const text of this.#hooks.live()) {
      batch.push(text);
      batchLength += text.length;
      if (batchLength < BATCH_BYTES) continue;
      await this.append(...batch);
      length += batchLength;
      batch = [];
      batchLength = 0;
    }
    await this.append(...batch);
    return length + batchLength;
  }
}

function nameOf(number: number): string {
  return NAME + number;
}

async function appendWhole(segment: Segment, pieces: readonly Buffer[]): Promise<void> {
  let rest = pieces.length === 1 ? (pieces[0] as Buffer) : Buffer.concat(pieces);
  while (rest.length > 0) {
    const { bytesWritten } = await write(segment.fd, rest);
    segment.bytes += bytesWritten;
    rest = rest.subarray(bytesWritten);
  }
}

async function sync(path: string): Promise<void> {
  // Another descriptor, because the file's own may be closed meanwhile.
  const fd = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    await datasync(fd);
  } finally {
    await close(fd);
  }
}

async function* textsOf(path: string): AsyncGenerator<string> {
  const decoder = new TextDecoder();
  let rest = "";
  for await (const chunk of Bun.file(path).stream()) {
    const lines = (rest + decoder.decode(chunk, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    yield* lines.filter((line) => line !== "");
  }
  if (rest !== "") yield rest;
}
