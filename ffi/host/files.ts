// Files, as far as the kernel may take its time over them: locks, reflinks, durability, preallocation, free space.
import { runJob } from "../channel.ts";
import { isHostError } from "../status.ts";

/** An exclusive lock on a file. The kernel drops it when the process ends, however that happens. */
export class FileLock implements AsyncDisposable {
  #handle: number | null;

  private constructor(
    readonly path: string,
    handle: number,
  ) {
    this.#handle = handle;
  }

  /** Takes the lock without waiting; the file is made (0600) if missing. Null: somebody else holds it. */
  static async take(path: string): Promise<FileLock | null> {
    try {
      const { handle } = await runJob("fileLock", { path }, path);
      return new FileLock(path, handle);
    } catch (error) {
      if (isHostError(error, "EAGAIN")) return null;
      throw error;
    }
  }

  /** Gives the lock back; the file stays. */
  async release(): Promise<void> {
    if (this.#handle === null) throw new Error(`the lock on ${this.path} was released before`);
    const handle = this.#handle;
    this.#handle = null;
    await runJob("handleClose", { handle }, this.path);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#handle !== null) await this.release();
  }
}

/** Makes `target` share the blocks of `source`. `EEXIST`: target exists; `EOPNOTSUPP`, `EXDEV`: cannot be shared. */
export async function cloneFile(source: string, target: string, mode: number): Promise<void> {
  await runJob("fileClone", { source, target, mode }, target);
}

/** Makes one file durable. */
export async function syncFile(path: string): Promise<void> {
  await runJob("fileSync", { path, wholeFileSystem: 0 }, path);
}

/** Makes everything on the file system that holds `path` durable. */
export async function syncFileSystem(path: string): Promise<void> {
  await runJob("fileSync", { path, wholeFileSystem: 1 }, path);
}

/** Makes a new file (0600) with all its blocks reserved. On failure there is no file. */
export async function allocateFile(path: string, bytes: number): Promise<void> {
  await runJob("fileAllocate", { path, bytes }, path);
}

/** Magic number and space of the file system that holds `path`; `availableBytes` is what ordinary users may take. */
export async function fileSystemFacts(
  path: string,
): Promise<{ type: number; totalBytes: number; availableBytes: number }> {
  return runJob("fileSystemFacts", { path }, path);
}
