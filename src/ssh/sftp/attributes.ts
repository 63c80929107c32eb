// Attributes of files as the protocol has them, and the line that `ls -l` shows.
import type { FileAttributes, FileEntry } from "../../contracts/files.ts";
import type { Fields, PacketBuilder } from "./packet.ts";

const FLAG = { size: 1, owner: 2, mode: 4, times: 8, extended: 0x8000_0000 } as const;
const TYPE_BITS = { file: 0o100_000, directory: 0o040_000, symlink: 0o120_000, other: 0o010_000 } as const;
const TYPE_LETTERS = { file: "-", directory: "d", symlink: "l", other: "p" } as const;
const EXTENSIONS_MAX = 64;
const SECONDS_MAX = 0xffff_ffff;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const HALF_A_YEAR_MS = 182 * 24 * 3600 * 1000;

export interface AskedAttributes extends FileAttributes {
  readonly owner?: { readonly uid: number; readonly gid: number };
}

/** Takes the attributes that a client sends. Throws `SftpViolation`. */
export function takeAttributes(fields: Fields): AskedAttributes {
  const flags = fields.uint32();
  const size = (flags & FLAG.size) !== 0 ? fields.uint64() : undefined;
  const owner = (flags & FLAG.owner) !== 0 ? { uid: fields.uint32(), gid: fields.uint32() } : undefined;
  const mode = (flags & FLAG.mode) !== 0 ? fields.uint32() & 0o7777 : undefined;
  const times = (flags & FLAG.times) !== 0 ? { accessed: fields.uint32(), modified: fields.uint32() } : undefined;
  if ((flags & FLAG.extended) !== 0) skipExtensions(fields);
  return {
    ...(size !== undefined && { size }),
    ...(owner !== undefined && { owner }),
    ...(mode !== undefined && { mode }),
    ...(times !== undefined && {
      accessedAtUnixMs: times.accessed * 1000,
      modifiedAtUnixMs: times.modified * 1000,
    }),
  };
}

function skipExtensions(fields: Fields): void {
  const count = Math.min(fields.uint32(), EXTENSIONS_MAX);
  for (let index = 0; index < 2 * count; index++) fields.string();
}

/** Adds the attributes of an entry. The guest tells no time of access, so that of the last change stands for both. */
export function putAttributes(packet: PacketBuilder, entry: FileEntry): void {
  const seconds = Math.min(Math.floor(entry.modifiedAtUnixMs / 1000), SECONDS_MAX);
  packet
    .uint32(FLAG.size | FLAG.owner | FLAG.mode | FLAG.times)
    .uint64(entry.size)
    .uint32(entry.uid)
    .uint32(entry.gid)
    .uint32(TYPE_BITS[entry.kind] | entry.mode)
    .uint32(seconds)
    .uint32(seconds);
}

/** The entry as `ls -l` shows it, with `name` at the end. */
export function longName(entry: FileEntry, name: Uint8Array, nowUnixMs: number): Uint8Array {
  const { kind, mode, uid, gid, size, modifiedAtUnixMs } = entry;
  const columns = [
    `${TYPE_LETTERS[kind]}${permissions(mode)}`,
    "  1",
    String(uid).padEnd(8),
    String(gid).padEnd(8),
    String(size).padStart(8),
    date(modifiedAtUnixMs, nowUnixMs),
  ];
  return Buffer.concat([Buffer.from(`${columns.join(" ")} `), name]);
}

function permissions(mode: number): string {
  const letters = [...("rwxrwxrwx" as const)].map((letter, index) => ((mode & (0o400 >> index)) !== 0 ? letter : "-"));
  const special = (bit: number, index: number, letter: string): void => {
    if ((mode & bit) !== 0) letters[index] = letters[index] === "x" ? letter : letter.toUpperCase();
  };
  special(0o4000, 2, "s");
  special(0o2000, 5, "s");
  special(0o1000, 8, "t");
  return letters.join("");
}

function date(unixMs: number, nowUnixMs: number): string {
  const time = new Date(unixMs);
  const two = (value: number): string => String(value).padStart(2, "0");
  const day = `${MONTHS[time.getUTCMonth()]} ${String(time.getUTCDate()).padStart(2)}`;
  const isRecent = Math.abs(nowUnixMs - unixMs) < HALF_A_YEAR_MS;
  return `${day} ${isRecent ? `${two(time.getUTCHours())}:${two(time.getUTCMinutes())}` : ` ${time.getUTCFullYear()}`}`;
}
