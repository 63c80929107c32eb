// How a listing lies in a file: one JSON document, whose first line is the head, padded to a length that is known before
// the listing is, and then one entry a line. So it is written and read in a stream, and the head alone is read quickly.
import { z } from "zod";
import { ENTRY_KINDS, type EntryKind, type ManifestEntry } from "../../contracts/channel.ts";
import type { FingerprintMode } from "../../contracts/change-set.ts";

export interface ListingHead {
  readonly mode: FingerprintMode;
  readonly takenAtUnixMs: number;
  /** Digest of the listing as the guest agent protocol defines it. */
  readonly digest: Uint8Array;
  /** Regular files. */
  readonly files: number;
  readonly entries: number;
  readonly paths: readonly Uint8Array[];
}

export interface ListingEntry {
  readonly path: Uint8Array;
  readonly entry: ManifestEntry;
}

const FORMAT_VERSION = 1;
const HEAD_END = '"entries":[\n';
export const LISTING_END = "\n]}\n";
const NUMBER_WIDTH = 16;

/** A name that is not UTF-8 is kept as base64, so that no byte is lost. */
const nameSchema = z.union([z.string(), z.object({ base64: z.base64() })]);
type StoredName = z.infer<typeof nameSchema>;

const headSchema = z.object({
  version: z.literal(FORMAT_VERSION),
  mode: z.enum(["sha256", "stat"]),
  taken_at_unix_ms: z.int().nonnegative(),
  digest: z.hex(),
  files: z.int().nonnegative(),
  entry_count: z.int().nonnegative(),
  paths: z.array(nameSchema),
});

const strictUtf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

function storedName(bytes: Uint8Array): StoredName {
  try {
    return strictUtf8.decode(bytes);
  } catch {
    return { base64: Buffer.from(bytes).toString("base64") };
  }
}

function nameBytes(name: StoredName): Uint8Array {
  return typeof name === "string" ? Buffer.from(name) : Buffer.from(name.base64, "base64");
}

/** The first line, always of the same length for the same paths. */
export function headLine(head: ListingHead): Buffer {
  const number = (value: number): string => String(value).padEnd(NUMBER_WIDTH);
  const fields = [
    `{"version":${FORMAT_VERSION}`,
    `"mode":${JSON.stringify(head.mode).padEnd(8)}`,
    `"taken_at_unix_ms":${number(head.takenAtUnixMs)}`,
    `"digest":${`"${Buffer.from(head.digest).toString("hex")}"`.padEnd(66)}`,
    `"files":${number(head.files)}`,
    `"entry_count":${number(head.entries)}`,
    `"paths":${JSON.stringify(head.paths.map(storedName))}`,
    HEAD_END,
  ];
  return Buffer.from(fields.join(","));
}

/** Throws when the line is not a head. */
export function parseHead(line: Buffer): ListingHead {
  const text = line.toString();
  if (!text.endsWith(HEAD_END)) throw new Error("no head of a listing");
  const raw = headSchema.parse(JSON.parse(`${text.slice(0, -HEAD_END.length - 1)}}`));
  return {
    mode: raw.mode,
    takenAtUnixMs: raw.taken_at_unix_ms,
    digest: Buffer.from(raw.digest, "hex"),
    files: raw.files,
    entries: raw.entry_count,
    paths: raw.paths.map(nameBytes),
  };
}

/** Printable ASCII without quote and backslash needs no escape; nearly every path is that. */
function isPlain(bytes: Uint8Array): boolean {
  for (const byte of bytes) {
    if (byte < 0x20 || byte > 0x7e || byte === 0x22 || byte === 0x5c) return false;
  }
  return true;
}

const view = (bytes: Uint8Array): Buffer => Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);

const quoted = (bytes: Uint8Array): string =>
  isPlain(bytes) ? `"${view(bytes).toString("latin1")}"` : JSON.stringify(storedName(bytes));

/** One entry without its line end. Files have their fingerprint in hexadecimal, links their target as a name. */
export function entryLine(path: Uint8Array, entry: ManifestEntry): string {
  const { fingerprint } = entry;
  const mark = entry.kind === "file" ? `"${view(fingerprint).toString("hex")}"` : quoted(fingerprint);
  const kind = ENTRY_KINDS.indexOf(entry.kind);
  return `[${quoted(path)},${kind},${mark},${entry.size},${entry.mode},${entry.uid},${entry.gid}]`;
}

const isCount = (value: unknown): value is number =>
  typeof value === "number" && Number.isSafeInteger(value) && value >= 0;

function asName(value: unknown): Uint8Array {
  if (typeof value === "string") return Buffer.from(value);
  return nameBytes(nameSchema.parse(value));
}

/** Throws when the line is not an entry. */
export function parseEntry(line: string): ListingEntry {
  const parts: unknown = JSON.parse(line);
  if (!Array.isArray(parts) || parts.length !== 7) throw new Error("an entry has seven parts");
  const [path, kindIndex, mark, size, mode, uid, gid] = parts as unknown[];
  const kind: EntryKind | undefined = isCount(kindIndex) ? ENTRY_KINDS[kindIndex] : undefined;
  if (kind === undefined || !isCount(size) || !isCount(mode) || !isCount(uid) || !isCount(gid)) {
    throw new Error("an entry has a part of the wrong type");
  }
  const fingerprint = kind === "file" && typeof mark === "string" ? Buffer.from(mark, "hex") : asName(mark);
  return { path: asName(path), entry: { kind, fingerprint, size, mode, uid, gid } };
}
