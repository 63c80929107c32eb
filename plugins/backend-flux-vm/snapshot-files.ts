// The files of snapshots in a volume: in a directory of the agent's that the machine's user cannot look into, opened step by
// step without following a link. The user owns the volume, so he can take the directory away, but whatever he puts in its place
// is not the agent's.
import { constants, type Stats } from "node:fs";
import { type FileHandle, lstat, mkdir, open, readdir, rename, rm, rmdir } from "node:fs/promises";
import { join } from "node:path";
import { AgentError } from "../../src/errors/agent-error.ts";

const DIRECTORY = "snapshots";
const { O_CREAT, O_DIRECTORY, O_EXCL, O_NOFOLLOW, O_NONBLOCK, O_RDONLY, O_RDWR } = constants;
const OTHERS = 0o077;

/** Where a file of a volume's snapshots lies. */
export const placeOf = (volumeDir: string, name: string): string => join(volumeDir, DIRECTORY, name);

/** Files that are open together. */
export class OpenFiles implements AsyncDisposable {
  private constructor(private readonly files: readonly FileHandle[]) {}

  /** Opens all; rejects with the first failure, and then none is open. */
  static async open(paths: readonly string[], flags: number): Promise<OpenFiles> {
    const opened = await Promise.allSettled(paths.map((path) => open(path, flags | O_NOFOLLOW, 0o600)));
    const files = new OpenFiles(opened.flatMap((one) => (one.status === "fulfilled" ? [one.value] : [])));
    const failed = opened.find((one) => one.status === "rejected");
    if (failed === undefined) return files;
    await files[Symbol.asyncDispose]();
    throw failed.reason;
  }

  /** Valid until they are closed. */
  get descriptors(): number[] {
    return this.files.map(({ fd }) => fd);
  }

  /** Whether all of them are the agent's and have no other name. */
  async areOwn(): Promise<boolean> {
    return (await Promise.all(this.files.map((file) => file.stat()))).every(isOwnFile);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    for (const file of this.files) await file.close();
  }
}

/** The directory, open. */
export class SnapshotDirectory implements AsyncDisposable {
  private constructor(private readonly directory: FileHandle) {}

  /** Null: there is none that is the agent's. */
  static async open(volumeDir: string): Promise<SnapshotDirectory | null> {
    const directory = await open(join(volumeDir, DIRECTORY), O_RDONLY | O_DIRECTORY | O_NOFOLLOW).catch(absent);
    if (directory === null) return null;
    const found = await directory.stat();
    if (isOwn(found) && (found.mode & OTHERS) === 0) return new SnapshotDirectory(directory);
    await directory.close();
    return null;
  }

  /** Makes it where there is none. Rejects with `MONITOR_ERROR` where somebody else's is in its place. */
  static async make(volumeDir: string): Promise<SnapshotDirectory> {
    await mkdir(join(volumeDir, DIRECTORY), { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
    });
    const made = await SnapshotDirectory.open(volumeDir);
    if (made === null)
      throw new AgentError("MONITOR_ERROR", "what is in the place of the snapshots is not the agent's");
    return made;
  }

  /** Makes files that were not there. */
  async create(names: readonly string[]): Promise<OpenFiles> {
    return await OpenFiles.open(this.#paths(names), O_RDWR | O_CREAT | O_EXCL);
  }

  /** Opens files that can only be read; null when one is missing or not the agent's. */
  async read(names: readonly string[]): Promise<OpenFiles | null> {
    const files = await OpenFiles.open(this.#paths(names), O_RDONLY | O_NONBLOCK).catch(absent);
    if (files === null || (await files.areOwn())) return files;
    await files[Symbol.asyncDispose]();
    return null;
  }

  async names(): Promise<string[]> {
    return await readdir(this.#path("."));
  }

  /** Null: there is no such file of the agent's. */
  async look(name: string): Promise<Stats | null> {
    const found = await lstat(this.#path(name)).catch(absent);
    return found !== null && isOwnFile(found) ? found : null;
  }

  async rename(from: string, to: string): Promise<void> {
    await rename(this.#path(from), this.#path(to));
  }

  async remove(names: readonly string[]): Promise<void> {
    for (const path of this.#paths(names)) await rm(path, { force: true });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.directory.close();
  }

  /** Leads there whatever has its name by now. */
  #path(name: string): string {
    return `/proc/self/fd/${this.directory.fd}/${name}`;
  }

  #paths(names: readonly string[]): string[] {
    return names.map((name) => this.#path(name));
  }
}

/** Takes the directory away if nothing is in it. */
export async function removeEmptyDirectory(volumeDir: string): Promise<void> {
  await rmdir(join(volumeDir, DIRECTORY)).catch(() => undefined);
}

const isOwn = (found: Stats): boolean => found.uid === process.geteuid?.();
const isOwnFile = (found: Stats): boolean => isOwn(found) && found.isFile() && found.nlink === 1;

/** What is not there, or is a link or something else than was asked for. */
function absent(error: NodeJS.ErrnoException): null {
  if (["ENOENT", "ELOOP", "ENOTDIR", "ENXIO"].includes(error.code ?? "")) return null;
  throw error;
}
