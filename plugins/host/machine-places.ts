// Files and directories of the host that a virtual machine is made of: looked at before it is launched, and made for it.
import { constants } from "node:fs";
import { access, chmod, chown, mkdir, stat, unlink } from "node:fs/promises";
import { removeTree } from "../../ffi/host/trees.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

/** A directory that only the virtual machine's user, and root, may use. `uid` null: the agent's own user. */
export async function makeOwned(path: string, uid: number | null): Promise<void> {
  await mkdir(path, { recursive: true, mode: 0o700 });
  await chmod(path, 0o700);
  if (uid !== null) await chown(path, uid, uid);
}

/** Removes what an earlier machine left at `path`; its user may have put a directory there, and filled it. */
export async function makeRoom(path: string): Promise<void> {
  await unlink(path).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code === "EISDIR") await removeTree(path);
    else if (error.code !== "ENOENT") throw error;
  });
}

/** Rejects with `BAD_REQUEST`. */
export async function assertReadable(path: string): Promise<void> {
  await access(path, constants.R_OK).catch((cause: NodeJS.ErrnoException) => {
    throw new AgentError("BAD_REQUEST", `${path} cannot be read (${cause.code})`, { cause });
  });
}

/** The same for what is to be a file: whoever opened a pipe would wait for its writer. */
export async function assertReadableFile(path: string): Promise<void> {
  await assertReadable(path);
  if (!(await stat(path)).isFile()) throw new AgentError("BAD_REQUEST", `${path} is not a file`);
}
