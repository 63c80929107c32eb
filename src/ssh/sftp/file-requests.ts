// The requests on files that are open or are being opened, and those that set attributes.
import { limits } from "../../config/limits.ts";
import type { FileAttributes, FileEntry } from "../../contracts/files.ts";
import { type AskedAttributes, takeAttributes } from "./attributes.ts";
import type { FileSystem } from "./file-system.ts";
import { OpenFile } from "./open-file.ts";
import { PacketBuilder, Reply } from "./packet.ts";
import { entryReply, pathOf, type Perform, permissionsOf } from "./request.ts";
import { SftpRefusal, Status } from "./status.ts";

const FLAG = { read: 1, write: 2, append: 4, create: 8, truncate: 16, exclusive: 32 } as const;
const FILE_MODE = 0o666;

export const open: Perform = async ({ files, handles }, fields, id) => {
  const asked = pathOf(fields);
  const flags = fields.uint32();
  const mode = permissionsOf(fields, FILE_MODE);
  handles.checkFile();
  await handles.settle();
  const isWritten = (flags & (FLAG.write | FLAG.append)) !== 0;
  const path = await fileToOpen(files, asked, { flags, mode });
  const file = new OpenFile(files, path, {
    read: (flags & FLAG.read) !== 0,
    write: isWritten,
    append: (flags & FLAG.append) !== 0,
  });
  if (!isWritten) {
    await handles.transfers(file);
    await file.begin();
  }
  return new PacketBuilder(Reply.handle, id).string(handles.addFile(file));
};

/** The path, without links, of the file that is there then. */
async function fileToOpen(
  files: FileSystem,
  asked: Uint8Array,
  { flags, mode }: { readonly flags: number; readonly mode: number },
): Promise<Uint8Array> {
  const empty = (flags & FLAG.truncate) !== 0;
  if ((flags & FLAG.create) !== 0) {
    return await files.create(asked, { mode, exclusive: (flags & FLAG.exclusive) !== 0, empty });
  }
  const { kind, path } = await files.resolve(asked);
  if (kind !== "file") throw new SftpRefusal(Status.failure, "it is no regular file");
  if (empty && (flags & FLAG.write) !== 0) await files.setAttributes(path, { size: 0 });
  return path;
}

export const close: Perform = ({ handles }, fields) => handles.close(fields.string());

export const read: Perform = async ({ handles }, fields, id) => {
  const file = handles.file(fields.string());
  const offset = fields.uint64();
  const length = Math.min(fields.uint32(), limits.sftpDataMaxBytes);
  await handles.transfers(file);
  const bytes = await file.read(offset, length);
  if (bytes === null) throw new SftpRefusal(Status.endOfFile, "the end of the file");
  return new PacketBuilder(Reply.data, id).string(bytes);
};

export const write: Perform = async ({ handles }, fields) => {
  const file = handles.file(fields.string());
  const offset = fields.uint64();
  await handles.transfers(file);
  await file.write(offset, fields.string());
};

export const fstat: Perform = async ({ handles }, fields, id) =>
  entryReply(id, await handles.file(fields.string()).attributes());

export const setstat: Perform = async ({ files, handles }, fields) => {
  const path = pathOf(fields);
  const asked = takeAttributes(fields);
  await handles.settle();
  await files.setAttributes(path, await settable(asked, () => files.resolve(path)));
};

export const fsetstat: Perform = async ({ handles }, fields) => {
  const file = handles.file(fields.string());
  const asked = takeAttributes(fields);
  await file.setAttributes(await settable(asked, () => file.attributes()));
};

/** A file belongs to its sandbox: its owner can be named, but not changed. */
async function settable(
  { owner, ...attributes }: AskedAttributes,
  look: () => Promise<FileEntry>,
): Promise<FileAttributes> {
  if (owner === undefined) return attributes;
  const { uid, gid } = await look();
  if (uid === owner.uid && gid === owner.gid) return attributes;
  throw new SftpRefusal(Status.permissionDenied, "files of a sandbox cannot be given away");
}
