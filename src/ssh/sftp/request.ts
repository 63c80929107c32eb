// What the requests have in common: the session, the fields that come again and again, and the answer with attributes.
import type { FileEntry } from "../../contracts/files.ts";
import { putAttributes, takeAttributes } from "./attributes.ts";
import type { FileSystem } from "./file-system.ts";
import type { Handles } from "./handles.ts";
import { type Fields, PacketBuilder, Reply } from "./packet.ts";
import { absolutePath } from "./path.ts";

/** As of most systems: what nobody but the owner may write. */
const UMASK = 0o022;

export interface SftpSession {
  readonly files: FileSystem;
  readonly handles: Handles;
}

/** Resolves to the answer, or to nothing where there is nothing but success. */
export type Perform = (session: SftpSession, fields: Fields, id: number) => Promise<PacketBuilder | void>;

/** The next field, a path. Throws `SftpViolation`. */
export function pathOf(fields: Fields): Uint8Array {
  return absolutePath(fields.string());
}

/** Permission bits for something new, from the attributes that come next. Throws `SftpViolation`. */
export function permissionsOf(fields: Fields, unsaid: number): number {
  const { mode = unsaid } = takeAttributes(fields);
  return mode & 0o777 & ~UMASK;
}

export function entryReply(id: number, entry: FileEntry): PacketBuilder {
  const reply = new PacketBuilder(Reply.attributes, id);
  putAttributes(reply, entry);
  return reply;
}
