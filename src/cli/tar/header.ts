// One header block of a tar archive, both ways: the form that guest agents send and take, with long names in entries of
// their own. Names are bytes.

export const BLOCK_BYTES = 512;

export type EntryKind = "file" | "directory" | "symlink";

export interface Header {
  readonly name: Uint8Array;
  /** `0` file, `5` directory, `2` symbolic link, `L` and `K` a long name or target for the next entry, … */
  readonly type: string;
  /** Bytes of content that follow, filled up to whole blocks. */
  readonly size: number;
  readonly mode: number;
  readonly modifiedAtUnixSecs: number;
  readonly target: Uint8Array;
}

/** The archive is not one, or holds what it must not. */
export class ArchiveError extends Error {
  override readonly name = "ArchiveError";
}

/** Offset and length of each field. */
const FIELDS = {
  name: [0, 100],
  mode: [100, 8],
  uid: [108, 8],
  gid: [116, 8],
  size: [124, 12],
  modified: [136, 12],
  checksum: [148, 8],
  type: [156, 1],
  target: [157, 100],
  magic: [257, 8],
} as const;

/** What a name or target may have at most; longer ones come in an entry before. */
export const NAME_MAX_BYTES = FIELDS.name[1];

const MAGIC = "ustar  \0";
const LARGE = 0x80;
const BLANK = 0x20;

/** The block of a header whose name and target fit. */
export function encodeHeader({ name, type, size, mode, modifiedAtUnixSecs, target }: Header): Uint8Array {
  const block = new Uint8Array(BLOCK_BYTES);
  const put = (field: keyof typeof FIELDS, bytes: Uint8Array) => block.set(bytes, FIELDS[field][0]);
  put("name", name);
  put("mode", octal(mode, FIELDS.mode[1]));
  put("uid", octal(0, FIELDS.uid[1]));
  put("gid", octal(0, FIELDS.gid[1]));
  put("size", number(size, FIELDS.size[1]));
  put("modified", number(Math.max(0, modifiedAtUnixSecs), FIELDS.modified[1]));
  put("type", Buffer.from(type));
  put("target", target);
  put("magic", Buffer.from(MAGIC));
  put("checksum", Buffer.from(`${checksum(block).toString(8).padStart(6, "0")}\0 `));
  return block;
}

/** The header in a block, null for the block of zeros that ends an archive. Throws `ArchiveError`. */
export function decodeHeader(block: Uint8Array): Header | null {
  if (block.every((byte) => byte === 0)) return null;
  const field = (name: keyof typeof FIELDS) => block.subarray(FIELDS[name][0], FIELDS[name][0] + FIELDS[name][1]);
  if (parsed(field("checksum")) !== checksum(block)) throw new ArchiveError("a header of the archive is damaged");
  return {
    name: terminated(field("name")),
    type: String.fromCharCode(field("type")[0] || "0".charCodeAt(0)),
    size: parsed(field("size")),
    mode: parsed(field("mode")) & 0o777,
    modifiedAtUnixSecs: parsed(field("modified")),
    target: terminated(field("target")),
  };
}

export function terminated(bytes: Uint8Array): Uint8Array {
  const end = bytes.indexOf(0);
  return end < 0 ? bytes : bytes.subarray(0, end);
}

/** The sum of all bytes, with blanks in place of the sum itself. */
function checksum(block: Uint8Array): number {
  const [at, length] = FIELDS.checksum;
  return block.reduce((sum, byte, index) => sum + (index >= at && index < at + length ? BLANK : byte), 0);
}

function octal(value: number, length: number): Uint8Array {
  return Buffer.from(`${value.toString(8).padStart(length - 1, "0")}\0`);
}

/** In octal where it fits, else in binary with the highest bit set. */
function number(value: number, length: number): Uint8Array {
  if (value < 8 ** (length - 1)) return octal(value, length);
  const bytes = Buffer.alloc(length);
  bytes.writeBigUInt64BE(BigInt(value), length - 8);
  bytes[0] = LARGE;
  return bytes;
}

function parsed(bytes: Uint8Array): number {
  const value =
    (bytes[0]! & LARGE) === 0
      ? Number.parseInt(Buffer.from(terminated(bytes)).toString("latin1").trim() || "0", 8)
      : Number(Buffer.from(bytes).readBigUInt64BE(bytes.length - 8));
  if (!Number.isSafeInteger(value) || value < 0) throw new ArchiveError("a number of the archive is none");
  return value;
}
