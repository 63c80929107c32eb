// Reads the entries of a manifest as they arrive, cut at any byte, and checks each: form, bounds, strict order. Works
// in short slices, because a listing has up to 200,000 entries and the event loop has other things to do.
import { limits } from "../config/limits.ts";
import { ENTRY_KINDS, type ManifestEntry, type ManifestSink } from "../contracts/channel.ts";
import { MsgpackReader } from "./msgpack.ts";
import { ProtocolViolation, Truncated } from "./violation.ts";

const ENTRY_FIELDS = 7;
const STATE_FIELDS = 6;
const DIFFERENCE_FIELDS = 3;
const DIGEST_BYTES = 32;
const MODE_MAX = 0o7777;
const ID_MAX = 0xffff_ffff;
/** More than any entry takes: a path, two link targets and the numbers. */
const ENTRY_MAX_BYTES = 3 * limits.pathMaxBytes + 256;
/** Entries between two looks at the clock. */
const STRIDE = 64;

const NO_BYTES = new Uint8Array(0);
const SLASH = 0x2f;

/** Pending input and counts of one listing or delta. */
export class ListingReader {
  readonly #sink: ManifestSink;
  readonly #filesMax: number;
  readonly #reader = new MsgpackReader();
  #lastPath: Uint8Array = NO_BYTES;
  #kind: "full" | "delta" | null = null;
  entries = 0;
  files = 0;

  constructor(sink: ManifestSink, filesMax: number) {
    this.#sink = sink;
    this.#filesMax = filesMax;
  }

  /** What the entries were, or null when there was none. */
  get kind(): "full" | "delta" | null {
    return this.#kind;
  }

  /** Bytes of an entry that has begun but not ended. */
  get unfinishedBytes(): number {
    return this.#reader.remaining;
  }

  /** Takes the next bytes of the listing. Read them with `read` before the next push. */
  push(bytes: Uint8Array): void {
    const rest = this.#reader.rest();
    if (rest.length > ENTRY_MAX_BYTES) throw new ProtocolViolation("an entry is longer than an entry can be");
    this.#reader.reset(rest.length === 0 ? bytes : Buffer.concat([rest, bytes]));
  }

  /** Hands whole entries to the sink until `untilMs` of the monotonic clock. True when only an unfinished one is left. */
  read(untilMs: number): boolean {
    for (;;) {
      for (let n = 0; n < STRIDE; n++) {
        if (!this.#readOne()) return true;
      }
      if (performance.now() >= untilMs) return false;
    }
  }

  /** False when the input ends within the entry; the position is then its start. */
  #readOne(): boolean {
    const start = this.#reader.position;
    if (this.#reader.remaining === 0) return false;
    try {
      const fields = this.#reader.arrayLength();
      const kind = fields === ENTRY_FIELDS ? "full" : fields === DIFFERENCE_FIELDS ? "delta" : null;
      if (kind === null || (this.#kind !== null && kind !== this.#kind)) {
        throw new ProtocolViolation("a manifest entry has the wrong form");
      }
      const path = this.#path();
      if (kind === "full") {
        const entry = this.#entry();
        this.#accept(kind, path);
        this.#countFile(entry);
        this.#sink.entry(path, entry);
      } else {
        const now = this.#optionalEntry();
        const before = this.#optionalEntry();
        if (now === null && before === null) throw new ProtocolViolation("a difference between nothing and nothing");
        this.#accept(kind, path);
        this.#sink.difference(path, now, before);
      }
      return true;
    } catch (error) {
      if (error !== Truncated) throw error;
      this.#reader.position = start;
      return false;
    }
  }

  #path(): Uint8Array {
    const path = this.#reader.bytes(limits.pathMaxBytes);
    if (path[0] !== SLASH || path.includes(0)) throw new ProtocolViolation("a manifest path is not absolute");
    return path;
  }

  #accept(kind: "full" | "delta", path: Uint8Array): void {
    if (Buffer.compare(path, this.#lastPath) <= 0) throw new ProtocolViolation("manifest entries are not in order");
    this.#kind = kind;
    this.#lastPath = path;
    this.entries++;
  }

  #countFile(entry: ManifestEntry): void {
    if (entry.kind === "file") this.files++;
    if (this.files > this.#filesMax) throw new ProtocolViolation("more files than were asked for");
  }

  #optionalEntry(): ManifestEntry | null {
    if (this.#reader.takeNil()) return null;
    if (this.#reader.arrayLength() !== STATE_FIELDS) throw new ProtocolViolation("a manifest entry has the wrong form");
    return this.#entry();
  }

  #entry(): ManifestEntry {
    const reader = this.#reader;
    const kind = ENTRY_KINDS[reader.unsigned()];
    const fingerprint = reader.bytes(limits.pathMaxBytes);
    const size = reader.unsigned();
    const mode = reader.unsigned();
    const uid = reader.unsigned();
    const gid = reader.unsigned();
    if (kind === undefined || mode > MODE_MAX || uid > ID_MAX || gid > ID_MAX) {
      throw new ProtocolViolation("a manifest entry is out of range");
    }
    const fits =
      fingerprint.length === 0 || kind === "symlink" || (kind === "file" && fingerprint.length === DIGEST_BYTES);
    if (!fits) throw new ProtocolViolation("a fingerprint has the wrong length");
    return { kind, fingerprint, size, mode, uid, gid };
  }
}
