// Decodes the entries and changes of file operations. They come from a peer that may be hostile: every field is checked.
import { limits } from "../config/limits.ts";
import { ENTRY_KINDS } from "../contracts/channel.ts";
import { CHANGE_KINDS, type FileChange, type FileEntry } from "../contracts/files.ts";
import { MsgpackReader } from "./msgpack.ts";
import { ProtocolViolation, Truncated } from "./violation.ts";

const ENTRY_FIELDS = 8;
const CHANGE_FIELDS = 3;
const MODE_MAX = 0o7777;
const ID_MAX = 0xffff_ffff;
/** A name in a directory of the longest path. */
const PATH_MAX_BYTES = 2 * limits.pathMaxBytes;
/** Two paths and what is around them. */
const CHANGE_MAX_BYTES = 2 * PATH_MAX_BYTES + 64;

/** All entries of a whole answer. Throws `ProtocolViolation`. */
export function fileEntries(bytes: Uint8Array): FileEntry[] {
  const reader = new MsgpackReader();
  reader.reset(bytes);
  const entries: FileEntry[] = [];
  while (reader.remaining > 0) entries.push(fileEntry(reader));
  return entries;
}

function fileEntry(reader: MsgpackReader): FileEntry {
  if (reader.arrayLength() !== ENTRY_FIELDS) throw new ProtocolViolation("a file entry has the wrong form");
  const path = reader.bytes(PATH_MAX_BYTES);
  const kind = ENTRY_KINDS[reader.unsigned()];
  const size = reader.unsigned();
  const mode = reader.unsigned();
  const uid = reader.unsigned();
  const gid = reader.unsigned();
  const modifiedAtUnixMs = reader.unsigned();
  const target = reader.bytes(limits.pathMaxBytes);
  if (kind === undefined || mode > MODE_MAX || uid > ID_MAX || gid > ID_MAX) {
    throw new ProtocolViolation("a file entry is out of range");
  }
  return { path, kind, size, mode, uid, gid, modifiedAtUnixMs, target };
}

/** Decodes changes that come in pieces. */
export class ChangeReader {
  readonly #reader = new MsgpackReader();
  #rest: Uint8Array = new Uint8Array(0);

  /** The changes that are whole with these bytes. Throws `ProtocolViolation`. */
  push(bytes: Uint8Array): FileChange[] {
    const reader = this.#reader;
    reader.reset(this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes]));
    const changes: FileChange[] = [];
    let start = 0;
    try {
      while (reader.remaining > 0) {
        start = reader.position;
        changes.push(change(reader));
      }
      this.#rest = new Uint8Array(0);
    } catch (error) {
      if (error !== Truncated) throw error;
      reader.position = start;
      if (reader.remaining > CHANGE_MAX_BYTES) throw new ProtocolViolation("a change is longer than a change can be");
      this.#rest = (this.#rest.length === 0 ? bytes : Buffer.concat([this.#rest, bytes])).slice(start);
    }
    return changes;
  }
}

function change(reader: MsgpackReader): FileChange {
  if (reader.arrayLength() !== CHANGE_FIELDS) throw new ProtocolViolation("a change has the wrong form");
  const kind = CHANGE_KINDS[reader.unsigned()];
  const path = reader.bytes(PATH_MAX_BYTES);
  const renamedTo = reader.bytes(PATH_MAX_BYTES);
  if (kind === undefined) throw new ProtocolViolation("a change is out of range");
  return { kind, path, renamedTo };
}
