// Each request of the protocol: what is done for it, and its answer. Every failure is the status of its request.
import { limits } from "../../config/limits.ts";
import { longName, putAttributes } from "./attributes.ts";
import { close, fsetstat, fstat, open, read, setstat, write } from "./file-requests.ts";
import { Fields, PacketBuilder, Reply, Request, SftpViolation } from "./packet.ts";
import { splitPath } from "./path.ts";
import { entryReply, pathOf, type Perform, permissionsOf, type SftpSession } from "./request.ts";
import { SftpRefusal, Status, statusOf } from "./status.ts";

const DIRECTORY_MODE = 0o777;
/** So many names take less than half of the longest packet. */
const NAMES_PER_ANSWER_MAX = 128;

/** Answers the request in `packet`. Throws `SftpViolation` for what is no request. */
export async function answerRequest(session: SftpSession, packet: Uint8Array): Promise<Uint8Array> {
  const fields = new Fields(packet);
  const type = fields.byte();
  const id = fields.uint32();
  try {
    const perform = requests.get(type);
    if (perform === undefined) throw new SftpRefusal(Status.unsupported, "unknown request");
    return ((await perform(session, fields, id)) ?? statusReply(id, Status.ok, "")).finish();
  } catch (error) {
    if (error instanceof SftpViolation) throw error;
    const { code, text } = statusOf(error);
    return statusReply(id, code, text).finish();
  }
}

const stat: Perform = async ({ files, handles }, fields, id) => {
  await handles.settle();
  return entryReply(id, await files.resolve(pathOf(fields)));
};

const lstat: Perform = async ({ files, handles }, fields, id) => {
  await handles.settle();
  return entryReply(id, await files.look(pathOf(fields)));
};

const opendir: Perform = async ({ files, handles }, fields, id) => {
  handles.checkDirectory();
  await handles.settle();
  return new PacketBuilder(Reply.handle, id).string(handles.addDirectory(await files.list(pathOf(fields))));
};

const readdir: Perform = async ({ handles }, fields, id) => {
  const directory = handles.directory(fields.string());
  const entries = directory.entries.slice(directory.next, directory.next + NAMES_PER_ANSWER_MAX);
  if (entries.length === 0) throw new SftpRefusal(Status.endOfFile, "the end of the directory");
  directory.next += entries.length;
  const reply = new PacketBuilder(Reply.name, id).uint32(entries.length);
  for (const entry of entries) {
    const name = splitPath(entry.path)?.name ?? entry.path;
    reply.string(name).string(longName(entry, name, Date.now()));
    putAttributes(reply, entry);
  }
  return reply;
};

const remove: Perform = ({ files }, fields) => files.remove(pathOf(fields), "other");

const rmdir: Perform = ({ files }, fields) => files.remove(pathOf(fields), "directory");

const mkdir: Perform = ({ files }, fields) =>
  files.makeDirectory(pathOf(fields), permissionsOf(fields, DIRECTORY_MODE));

const rename: Perform = async ({ files, handles }, fields) => {
  await handles.settle();
  await files.rename(pathOf(fields), pathOf(fields), false);
};

/** What is not there, or cannot be followed, is told as it was asked. */
const realpath: Perform = async ({ files }, fields, id) => {
  const asked = pathOf(fields);
  const path = await files.resolve(asked).then(
    (found) => found.path,
    () => asked,
  );
  return nameReply(id, path);
};

const readlink: Perform = async ({ files }, fields, id) => {
  const { kind, target } = await files.look(pathOf(fields));
  if (kind !== "symlink") throw new SftpRefusal(Status.failure, "it is no symbolic link");
  return nameReply(id, target);
};

/** The target comes first, as OpenSSH has it and clients have followed. */
const symlink: Perform = ({ files }, fields) => {
  const target = fields.string();
  return files.symlink(pathOf(fields), target);
};

const extended: Perform = async (session, fields, id) => {
  const { files, handles } = session;
  switch (fields.text()) {
    case "posix-rename@openssh.com":
      await handles.settle();
      return await files.rename(pathOf(fields), pathOf(fields), true);
    case "hardlink@openssh.com":
      return await files.link(pathOf(fields), pathOf(fields));
    case "limits@openssh.com":
      return new PacketBuilder(Reply.extended, id)
        .uint64(limits.sftpPacketMaxBytes)
        .uint64(limits.sftpDataMaxBytes)
        .uint64(limits.sftpDataMaxBytes)
        .uint64(limits.sftpFilesMax);
    default:
      throw new SftpRefusal(Status.unsupported, "unknown extension");
  }
};

const requests: ReadonlyMap<number, Perform> = new Map([
  [Request.open, open],
  [Request.close, close],
  [Request.read, read],
  [Request.write, write],
  [Request.lstat, lstat],
  [Request.fstat, fstat],
  [Request.setstat, setstat],
  [Request.fsetstat, fsetstat],
  [Request.opendir, opendir],
  [Request.readdir, readdir],
  [Request.remove, remove],
  [Request.mkdir, mkdir],
  [Request.rmdir, rmdir],
  [Request.realpath, realpath],
  [Request.stat, stat],
  [Request.rename, rename],
  [Request.readlink, readlink],
  [Request.symlink, symlink],
  [Request.extended, extended],
]);

function nameReply(id: number, path: Uint8Array): PacketBuilder {
  const nobodyLooks = 0;
  return new PacketBuilder(Reply.name, id).uint32(1).string(path).string(path).uint32(nobodyLooks);
}

function statusReply(id: number, code: number, text: string): PacketBuilder {
  return new PacketBuilder(Reply.status, id).uint32(code).string(text).string("en");
}
