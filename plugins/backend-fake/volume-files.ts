// Files of a fake sandbox, in its volume's directory. No verb makes a symbolic link, and links that a volume holds all
// the same are refused on the way, so a path stays inside.
import { chmod, lstat, mkdir, open, rename, rm } from "node:fs/promises";
import { constants } from "node:fs";
import type { FileContent } from "../../src/contracts/channel.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const PATH_MAX_BYTES = 4095;
const SLASH = 0x2f;

export class VolumeFiles {
  readonly #root: Buffer;

  constructor(root: string) {
    this.#root = Buffer.from(root);
  }

  /** The host path of `path`, with every directory on the way checked to be one. Errors: `PATH_INVALID`, `FILE_…`. */
  async resolve(path: Uint8Array): Promise<Buffer> {
    const names = componentsOf(path);
    let at = this.#root;
    for (const [index, name] of names.entries()) {
      at = child(at, name);
      if (index === names.length - 1) break;
      const stats = await lstat(at).catch(notFound);
      if (stats.isSymbolicLink()) throw new AgentError("FILE_IS_SYMLINK");
      if (!stats.isDirectory()) throw new AgentError("NOT_A_DIRECTORY");
    }
    return at;
  }

  async read(path: Uint8Array, maxBytes: number): Promise<FileContent> {
    const target = await this.resolve(path);
    const stats = await lstat(target).catch(notFound);
    if (stats.isSymbolicLink()) throw new AgentError("FILE_IS_SYMLINK");
    if (!stats.isFile()) throw new AgentError("FILE_NOT_REGULAR");
    if (stats.size > maxBytes) throw new AgentError("FILE_TOO_LARGE");
    const file = await open(target, constants.O_RDONLY | constants.O_NOFOLLOW).catch(notFound);
    try {
      return { content: new Uint8Array(await file.readFile()), mode: stats.mode & 0o777 };
    } finally {
      await file.close();
    }
  }

  async write(path: Uint8Array, content: Uint8Array, mode: number, maxBytes: number): Promise<void> {
    if (content.length > maxBytes) throw new AgentError("FILE_TOO_LARGE");
    const names = componentsOf(path);
    if (names.length === 0) throw new AgentError("PATH_INVALID");
    let parent = this.#root;
    for (const name of names.slice(0, -1)) {
      parent = child(parent, name);
      await mkdir(parent, 0o755).catch(existing);
    }
    const target = await this.resolve(path);
    const temporary = child(parent, Buffer.from(`.${crypto.randomUUID()}`));
    const file = await open(temporary, "wx", 0o600);
    try {
      await file.writeFile(content);
      await file.chmod(mode & 0o777);
      await rename(temporary, target);
    } catch (error) {
      await rm(temporary, { force: true });
      throw error;
    } finally {
      await file.close();
    }
  }

  async makeDirectory(path: Uint8Array): Promise<void> {
    const target = await this.resolve(path);
    await mkdir(target, 0o755);
    await chmod(target, 0o755);
  }

  async remove(path: Uint8Array): Promise<void> {
    const target = await this.resolve(path);
    await lstat(target).catch(notFound);
    await rm(target, { recursive: true });
  }
}

/** Components of an absolute path. Error `PATH_INVALID` for one that is relative, too long, holds a NUL or climbs. */
export function componentsOf(path: Uint8Array): Buffer[] {
  const bytes = Buffer.from(path);
  if (bytes[0] !== SLASH || bytes.length > PATH_MAX_BYTES || bytes.includes(0)) throw new AgentError("PATH_INVALID");
  const names: Buffer[] = [];
  for (let start = 1; start <= bytes.length;) {
    const slash = bytes.indexOf(SLASH, start);
    const end = slash < 0 ? bytes.length : slash;
    const name = bytes.subarray(start, end);
    if (name.equals(Buffer.from(".."))) throw new AgentError("PATH_INVALID");
    if (name.length > 0 && !name.equals(Buffer.from("."))) names.push(name);
    start = end + 1;
  }
  return names;
}

/** `directory/name` in bytes, as a name need not be UTF-8. */
export function child(directory: Buffer, name: Uint8Array): Buffer {
  return Buffer.concat([directory, Buffer.from("/"), name]);
}

function notFound(error: NodeJS.ErrnoException): never {
  if (error.code === "ENOENT") throw new AgentError("FILE_NOT_FOUND");
  if (error.code === "ENOTDIR") throw new AgentError("NOT_A_DIRECTORY");
  if (error.code === "EACCES") throw new AgentError("FILE_DENIED");
  if (error.code === "ELOOP") throw new AgentError("FILE_IS_SYMLINK");
  throw error;
}

function existing(error: NodeJS.ErrnoException): void {
  if (error.code !== "EEXIST") throw error;
}
