// From fields to entries: parses what the guest claims, strictly, and puts hashes to their files.
import type { FingerprintMode } from "../../src/contracts/change-set.ts";
import type { EntryKind, ManifestEntry, ManifestRequest } from "../../src/contracts/channel.ts";
import { compareBytes } from "../../src/contracts/listing.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { Pace } from "./pace.ts";

const NOTHING = new Uint8Array();
const SPACE = 0x20;
const NUMBERS_BEFORE_PATH = 6;
const HASH = /^[0-9a-f]{64} [ *]/;
const HASH_CHARS = 64;
const ENTRY_MIN_BYTES = 12;
const SORT_RUN = 1024;

export interface Found {
  readonly path: Buffer;
  entry: ManifestEntry;
}

/** Collects the entries of one run of the script. Errors: `WALK_FAILED`, `LISTING_TOO_LARGE`. */
export class Records {
  readonly #mode: FingerprintMode;
  readonly #limits: Pick<ManifestRequest, "filesMax" | "listingMaxBytes">;
  readonly #found: Found[] = [];
  /** Files that a hash is expected for, by their path's bytes as characters. */
  readonly #unhashed = new Map<string, Found>();
  #numbers: Buffer | null = null;
  #section: "entries" | "hashes" | "end" = "entries";
  #files = 0;
  #bytes = 0;

  constructor(mode: FingerprintMode, limits: Pick<ManifestRequest, "filesMax" | "listingMaxBytes">) {
    this.#mode = mode;
    this.#limits = limits;
  }

  take(field: Buffer): void {
    if (this.#section === "end") throw malformed();
    if (this.#numbers !== null) {
      this.#addEntry(this.#numbers, field);
      this.#numbers = null;
    } else if (this.#section === "hashes") this.#takeHash(field);
    else if (field.length === 1 && field[0] === 0x48) this.#section = "hashes";
    else this.#numbers = Buffer.from(field);
  }

  /** True when the script has said that its walk is complete. */
  get complete(): boolean {
    return this.#section === "end";
  }

  /** The entries. Error `WALK_FAILED` when a file went away between the passes. */
  finish(): readonly Found[] {
    const [first] = this.#unhashed.keys();
    if (first !== undefined) throw walkFailed(`${printable(first)} changed during the walk`);
    return this.#found;
  }

  #addEntry(numbers: Buffer, extra: Buffer): void {
    const { type, size, mode, uid, gid, time, path } = parseNumbers(numbers);
    const kind = KINDS[type] ?? "other";
    const readable = type !== "u";
    const isFile = kind === "file";
    if (isFile && ++this.#files > this.#limits.filesMax) {
      throw new AgentError("LISTING_TOO_LARGE", `more than ${this.#limits.filesMax} files; narrow the paths`);
    }
    this.#bytes += path.length + extra.length + ENTRY_MIN_BYTES;
    if (this.#bytes > this.#limits.listingMaxBytes) throw new AgentError("LISTING_TOO_LARGE");
    const hashed = isFile && extra.length > 0;
    let fingerprint: Uint8Array = NOTHING;
    if (kind === "symlink") fingerprint = new Uint8Array(extra);
    else if (isFile && this.#mode === "stat") fingerprint = new Uint8Array(Buffer.from(`${size}:${time}`));
    else if (hashed) fingerprint = parseHash(extra);
    const found = { path, entry: { kind, fingerprint, size: kind === "directory" ? 0 : size, mode, uid, gid } };
    this.#found.push(found);
    if (isFile && readable && this.#mode === "sha256" && !hashed) this.#unhashed.set(path.toString("latin1"), found);
  }

  #takeHash(field: Buffer): void {
    if (field.length === 1 && field[0] === 0x45) {
      this.#section = "end";
      return;
    }
    const text = field.toString("latin1");
    if (!HASH.test(text)) throw malformed();
    const path = absolute(field.subarray(HASH_CHARS + 2)).toString("latin1");
    const found = this.#unhashed.get(path);
    // A file that came after the first pass is not part of the listing.
    if (found === undefined) return;
    found.entry = { ...found.entry, fingerprint: Buffer.from(text.slice(0, HASH_CHARS), "hex") };
    this.#unhashed.delete(path);
  }
}

const KINDS: Readonly<Record<string, EntryKind>> = { f: "file", u: "file", d: "directory", l: "symlink" };

function parseNumbers(field: Buffer) {
  const words: string[] = [];
  let at = 0;
  while (words.length < NUMBERS_BEFORE_PATH) {
    const space = field.indexOf(SPACE, at);
    if (space < 0) throw malformed();
    words.push(field.subarray(at, space).toString("latin1"));
    at = space + 1;
  }
  const [type = "", size = "", mode = "", uid = "", gid = "", time = ""] = words;
  if (!/^[\d.]{1,40}$/.test(time.replace(/^-/, ""))) throw malformed();
  const path = absolute(field.subarray(at));
  // A device has its number where other things have a size.
  const sized = KINDS[type] !== undefined;
  const numbers = { size: sized ? integer(size) : 0, mode: parseMode(mode), uid: integer(uid), gid: integer(gid) };
  return { type, time, path, ...numbers };
}

function integer(text: string): number {
  const value = Number(text);
  if (!/^\d{1,16}$/.test(text) || !Number.isSafeInteger(value)) throw malformed();
  return value;
}

/** `644`, `4755`, or `-rwsr-xr-x` with whatever mark `ls` puts behind. */
function parseMode(text: string): number {
  if (/^[0-7]{1,4}$/.test(text)) return Number.parseInt(text, 8);
  const marks = /^.([r-])([w-])([xsS-])([r-])([w-])([xsS-])([r-])([w-])([xtT-])[.+@]?$/.exec(text)?.slice(1);
  if (marks === undefined) throw malformed();
  return marks.reduce((mode, mark, index) => {
    const special = "sStT".includes(mark) ? (SPECIAL_BITS[index] ?? 0) : 0;
    const plain = mark !== "-" && mark !== "S" && mark !== "T" ? 0o400 >> index : 0;
    return mode | special | plain;
  }, 0);
}

const SPECIAL_BITS: Readonly<Record<number, number>> = { 2: 0o4000, 5: 0o2000, 8: 0o1000 };

function parseHash(extra: Buffer): Uint8Array {
  if (!/^[0-9a-f]{64}$/.test(extra.toString("latin1"))) throw malformed();
  return new Uint8Array(Buffer.from(extra.toString("latin1"), "hex"));
}

/** `.` as `/`, and `./a` as `/a`. */
function absolute(relative: Buffer): Buffer {
  if (relative[0] !== 0x2e || (relative.length > 1 && relative[1] !== 0x2f)) throw malformed();
  return Buffer.from(relative.length === 1 ? "/" : relative.subarray(1));
}

/** Sorts by path bytes without holding the event loop, and drops repetitions. */
export async function sorted(found: readonly Found[], pace: Pace): Promise<Found[]> {
  let runs: Found[][] = [];
  for (let at = 0; at < found.length; at += SORT_RUN) {
    runs.push(found.slice(at, at + SORT_RUN).sort((left, right) => compareBytes(left.path, right.path)));
    await pace.turn();
  }
  while (runs.length > 1) {
    const merged: Found[][] = [];
    for (let at = 0; at < runs.length; at += 2) merged.push(await merge(runs[at] ?? [], runs[at + 1] ?? [], pace));
    runs = merged;
  }
  const all = runs[0] ?? [];
  return all.filter(({ path }, index) => index === 0 || all[index - 1]?.path.equals(path) !== true);
}

async function merge(left: readonly Found[], right: readonly Found[], pace: Pace): Promise<Found[]> {
  const out: Found[] = [];
  let [l, r] = [0, 0];
  for (let one = left[l], two = right[r]; one !== undefined || two !== undefined; one = left[l], two = right[r]) {
    if (two === undefined || (one !== undefined && compareBytes(one.path, two.path) <= 0)) {
      out.push(one as Found);
      l += 1;
    } else {
      out.push(two);
      r += 1;
    }
    if (out.length % SORT_RUN === 0) await pace.turn();
  }
  return out;
}

export function walkFailed(reason: string): AgentError {
  return new AgentError("WALK_FAILED", `listing the files failed: ${reason}`);
}

function malformed(): AgentError {
  return walkFailed("the guest's answer is no listing");
}

/** Text of a guest with everything but printable ASCII escaped, and bounded. */
export function printable(text: string): string {
  const escaped = text.replace(/[^\x20-\x7e]/g, (char) => `\\x${char.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return escaped.length > 300 ? `${escaped.slice(0, 300)}…` : escaped;
}
