// The files of one sandbox as a client of the protocol sees them. The guest refuses links on its paths; here they are
// followed as the protocol wants it, by asking the guest where a path leads and then using that.
import type { ByteSource, CreateOptions, FileAttributes, FileDownload, FileEntry } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { FileSystemOperations } from "../../sandbox/files/operations.ts";
import type { Login } from "../authentication.ts";
import { joinPath, splitPath } from "./path.ts";
import { SftpRefusal, Status } from "./status.ts";

/** Every method takes paths of `absolutePath`, and rejects with `AgentError` or `SftpRefusal`. */
export class FileSystem {
  readonly #files: FileSystemOperations;
  readonly #who: readonly [Login["caller"], string];

  constructor(files: FileSystemOperations, { caller, sandboxId }: Login) {
    this.#files = files;
    this.#who = [caller, sandboxId];
  }

  /** What is at the path; a link itself. */
  look(path: Uint8Array): Promise<FileEntry> {
    return this.#named(path, (found) => this.#files.stat(...this.#who, found));
  }

  /** What the path leads to. */
  resolve(path: Uint8Array): Promise<FileEntry> {
    return this.#files.resolve(...this.#who, path);
  }

  list(path: Uint8Array): Promise<readonly FileEntry[]> {
    return this.#following(path, (found) => this.#files.list(...this.#who, found));
  }

  /** Makes a file or finds it; resolves to its path, from which on nothing has to be followed. */
  async create(path: Uint8Array, options: CreateOptions): Promise<Uint8Array> {
    const create = async (found: Uint8Array): Promise<Uint8Array> => {
      await this.#files.create(...this.#who, found, options);
      return found;
    };
    try {
      // A link that is only on the way leads to where a new file goes.
      return await this.#named(path, create);
    } catch (error) {
      if (options.exclusive || !isLinkOnTheWay(error)) throw error;
      return await create((await this.resolve(path)).path);
    }
  }

  /** `length` absent: to the end. */
  read(path: Uint8Array, offset: number, length?: number): Promise<FileDownload> {
    const range = { offset, fromEnd: false, ...(length !== undefined && { length }) };
    return this.#following(path, (found) => this.#files.read(...this.#who, found, range));
  }

  /** `offset` null: at the end. The path has no links. */
  write(path: Uint8Array, offset: number | null, content: ByteSource): Promise<number> {
    return this.#files.writeAt(...this.#who, path, offset, content);
  }

  setAttributes(path: Uint8Array, attributes: FileAttributes): Promise<void> {
    return this.#following(path, (found) => this.#files.setAttributes(...this.#who, found, attributes));
  }

  async makeDirectory(path: Uint8Array, mode: number): Promise<void> {
    const parts = splitPath(path);
    // The guest would make what is missing above it.
    if (parts !== null) await this.resolve(parts.directory);
    const isNew = await this.#named(path, (found) => this.#files.makeDirectory(...this.#who, found, mode));
    if (!isNew) throw new SftpRefusal(Status.failure, "something has this name");
  }

  async remove(path: Uint8Array, what: "directory" | "other"): Promise<void> {
    await this.#named(path, async (found) => {
      const { kind } = await this.#files.stat(...this.#who, found);
      if ((kind === "directory") !== (what === "directory")) {
        throw new SftpRefusal(Status.failure, kind === "directory" ? "it is a directory" : "it is no directory");
      }
      await this.#files.remove(...this.#who, found, false);
    });
  }

  /** With `replace` false a name that is taken is refused. */
  async rename(from: Uint8Array, to: Uint8Array, replace: boolean): Promise<void> {
    await this.#named(from, (old) =>
      this.#named(to, async (fresh) => {
        if (!replace && (await this.#isThere(fresh))) throw new SftpRefusal(Status.failure, "something has this name");
        await this.#files.move(...this.#who, old, fresh);
      }),
    );
  }

  async link(from: Uint8Array, to: Uint8Array): Promise<void> {
    await this.#named(from, (old) => this.#named(to, (fresh) => this.#files.link(...this.#who, old, fresh)));
  }

  async symlink(path: Uint8Array, target: Uint8Array): Promise<void> {
    await this.#named(path, (found) => this.#files.symlink(...this.#who, found, target));
  }

  async #isThere(path: Uint8Array): Promise<boolean> {
    try {
      await this.#files.stat(...this.#who, path);
      return true;
    } catch (error) {
      if (error instanceof AgentError && error.code === "PATH_NOT_FOUND") return false;
      throw error;
    }
  }

  /** Acts on what the path leads to. */
  async #following<T>(path: Uint8Array, act: (found: Uint8Array) => Promise<T>): Promise<T> {
    try {
      return await act(path);
    } catch (error) {
      if (!isLinkOnTheWay(error)) throw error;
      return await act((await this.resolve(path)).path);
    }
  }

  /** Acts on the name itself, in the directory that the rest of the path leads to. */
  async #named<T>(path: Uint8Array, act: (found: Uint8Array) => Promise<T>): Promise<T> {
    try {
      return await act(path);
    } catch (error) {
      const parts = splitPath(path);
      if (!isLinkOnTheWay(error) || parts === null) throw error;
      const { path: directory } = await this.resolve(parts.directory);
      return await act(joinPath(directory, parts.name));
    }
  }
}

function isLinkOnTheWay(error: unknown): boolean {
  return error instanceof AgentError && error.code === "FILE_IS_SYMLINK";
}
