// Changing a file that somebody else owns: read once, kept as a copy beside it, and replaced whole with the same owner
// and mode. Nobody sees half of it, and a change that somebody made meanwhile is not lost.
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { type FileHandle, open, realpath, rename, rm } from "node:fs/promises";
import { dirname } from "node:path";

/** A file as it was when it was read. */
export interface FileToEdit {
  /** Where it really is: a link to it stays a link. */
  readonly path: string;
  readonly text: string;
  readonly uid: number;
  readonly gid: number;
  readonly mode: number;
}

/** Reads a text file of at most `maxBytes`. Rejects with an `Error` that names it. */
export async function openForEdit(named: string, maxBytes: number): Promise<FileToEdit> {
  const path = await realpath(named).catch((error: NodeJS.ErrnoException) => {
    throw new Error(`${named} cannot be read (${error.code ?? "unknown"})`);
  });
  const handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  try {
    const status = await handle.stat();
    if (!status.isFile()) throw new Error(`${path} is not a regular file`);
    if (status.size > maxBytes) throw new Error(`${path} is larger than ${maxBytes} bytes`);
    const bytes = await handle.readFile();
    const text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return { path, text, uid: status.uid, gid: status.gid, mode: status.mode & 0o7777 };
  } finally {
    await handle.close();
  }
}

/** Writes what the file was to `copy`, replacing what is there. */
export async function keepCopy(file: FileToEdit, copy: string): Promise<void> {
  await writeWhole(copy, file.text, file, async () => {});
}

/** Replaces the file. Rejects with an `Error`, and changes nothing, when it is not what was read any more. */
export async function replaceText(file: FileToEdit, text: string): Promise<void> {
  await writeWhole(file.path, text, file, async () => {
    const now = await openForEdit(file.path, Number.MAX_SAFE_INTEGER);
    if (now.text !== file.text) throw new Error(`${file.path} has been changed meanwhile; nothing was written`);
  });
}

async function writeWhole(
  path: string,
  text: string,
  { uid, gid, mode }: FileToEdit,
  beforeRename: () => Promise<void>,
): Promise<void> {
  const temporary = `${path}.new-${randomBytes(6).toString("hex")}`;
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  try {
    await using handle = await open(temporary, flags, 0o600);
    await handle.writeFile(text);
    await giveTo(handle, uid, gid);
    // After the owner: a change of owner takes some bits away.
    await handle.chmod(mode);
    await handle.sync();
    await beforeRename();
    await rename(temporary, path);
    await syncDirectory(dirname(path));
  } catch (error) {
    await rm(temporary, { force: true });
    throw error;
  }
}

async function giveTo(handle: FileHandle, uid: number, gid: number): Promise<void> {
  const now = await handle.stat();
  if (now.uid !== uid || now.gid !== gid) await handle.chown(uid, gid);
}

async function syncDirectory(path: string): Promise<void> {
  await using handle = await open(path, constants.O_RDONLY | constants.O_DIRECTORY);
  await handle.sync();
}
