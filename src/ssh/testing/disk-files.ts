// The files of a sandbox for tests: a directory of this machine, with the refusals and the streams of a real guest.
import {
  type FileHandle,
  link,
  lstat,
  mkdir,
  open,
  readdir,
  readlink,
  realpath,
  rename,
  symlink,
} from "node:fs/promises";
import { chmod, rmdir, truncate, unlink, utimes } from "node:fs/promises";
import { join } from "node:path";
import type { ByteSource, FileDownload, FileEntry, FileRange } from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { FileSystemOperations } from "../../sandbox/files/operations.ts";

const CODES: Readonly<Record<string, ErrorCode>> = {
  ENOENT: "PATH_NOT_FOUND",
  ENOTDIR: "NOT_A_DIRECTORY",
  EISDIR: "FILE_NOT_REGULAR",
  ENOTEMPTY: "DIRECTORY_NOT_EMPTY",
  EEXIST: "PATH_EXISTS",
  EACCES: "FILE_DENIED",
  ELOOP: "FILE_IS_SYMLINK",
};

const PIECE_BYTES = 50_000;

type Unused = "write" | "readArchive" | "writeArchive" | "watch";

export class DiskFiles implements Omit<FileSystemOperations, Unused> {
  /** Downloads and uploads that are under way, and the most that ever were. */
  transfers = 0;
  transfersMax = 0;
  /** Downloads that were begun. */
  reads = 0;
  /** When set, uploads fail with it after so many bytes. */
  fullAfterBytes = Number.POSITIVE_INFINITY;

  constructor(readonly dir: string) {}

  stat = (_: unknown, __: string, path: Uint8Array) => this.#at(path, (found) => this.#entry(found, path));

  resolve = (_: unknown, __: string, path: Uint8Array) =>
    this.#do(async () => {
      const real = await realpath(this.#place(path));
      const root = await realpath(this.dir);
      if (real !== root && !real.startsWith(`${root}/`)) throw new AgentError("PATH_NOT_FOUND");
      return this.#entry(real, Buffer.from(real.slice(root.length) || "/", "latin1"));
    });

  list = (_: unknown, __: string, path: Uint8Array) =>
    this.#at(path, async (found) => {
      const names = await readdir(found, { encoding: "latin1" });
      const prefix = path.length === 1 ? "" : Buffer.from(path).toString("latin1");
      return Promise.all(
        names.toSorted().map((name) => this.#entry(join(found, name), Buffer.from(`${prefix}/${name}`, "latin1"))),
      );
    });

  makeDirectory = (_: unknown, __: string, path: Uint8Array, mode: number) =>
    this.#at(path, async (found) => {
      const there = await lstat(found).catch(() => null);
      if (there !== null) return false;
      await mkdir(found, { recursive: true, mode });
      await chmod(found, mode);
      return true;
    });

  remove = (_: unknown, __: string, path: Uint8Array) =>
    this.#at(path, async (found) => {
      if ((await lstat(found)).isDirectory()) await rmdir(found);
      else await unlink(found);
      return 1;
    });

  move = (_: unknown, __: string, from: Uint8Array, to: Uint8Array) =>
    this.#at(from, (old) => this.#at(to, (fresh) => rename(old, fresh)));

  create = (
    _: unknown,
    __: string,
    path: Uint8Array,
    { mode, exclusive, empty }: { readonly mode: number; readonly exclusive: boolean; readonly empty: boolean },
  ) =>
    this.#at(path, async (found) => {
      const there = await lstat(found).catch(() => null);
      if (there !== null && exclusive) throw new AgentError("PATH_EXISTS");
      await this.#refuseLink(found);
      const file = await open(found, empty ? "w" : "a", mode);
      await file.close();
      if (there === null) await chmod(found, mode);
      return (await lstat(found)).size;
    });

  setAttributes = (
    _: unknown,
    __: string,
    path: Uint8Array,
    attributes: Parameters<FileSystemOperations["setAttributes"]>[3],
  ) =>
    this.#at(path, async (found) => {
      await this.#refuseLink(found);
      const { mode, size, modifiedAtUnixMs, accessedAtUnixMs } = attributes;
      if (size !== undefined) await truncate(found, size);
      if (mode !== undefined) await chmod(found, mode);
      const now = (await lstat(found)).mtimeMs;
      if (modifiedAtUnixMs !== undefined) {
        await utimes(found, (accessedAtUnixMs ?? now) / 1000, modifiedAtUnixMs / 1000);
      }
    });

  symlink = (_: unknown, __: string, path: Uint8Array, target: Uint8Array) =>
    this.#at(path, (found) => symlink(Buffer.from(target).toString("latin1"), found));

  link = (_: unknown, __: string, from: Uint8Array, to: Uint8Array) =>
    this.#at(from, (old) => this.#at(to, (fresh) => link(old, fresh)));

  read = (_: unknown, __: string, path: Uint8Array, range: FileRange): Promise<FileDownload> =>
    this.#at(path, async (found) => {
      await this.#refuseLink(found);
      if (!(await lstat(found)).isFile()) throw new AgentError("FILE_NOT_REGULAR");
      return this.#download(await open(found, "r"), range);
    });

  writeAt = (_: unknown, __: string, path: Uint8Array, offset: number | null, content: ByteSource) =>
    this.#at(path, async (found) => {
      await this.#refuseLink(found);
      const file = await open(found, offset === null ? "a" : "r+");
      this.#begin();
      try {
        let at = offset ?? (await file.stat()).size;
        for (let piece = await content.read(); piece !== null; piece = await content.read()) {
          if (at + piece.length > this.fullAfterBytes) throw new AgentError("WORKSPACE_FULL");
          // A guest takes its time, so that requests overtake it where they can.
          await Bun.sleep(0);
          await file.write(piece, 0, piece.length, offset === null ? null : at);
          at += piece.length;
        }
        return (await file.stat()).size;
      } finally {
        this.transfers -= 1;
        content.close();
        await file.close();
      }
    });

  #download(file: FileHandle, { offset, length = Number.POSITIVE_INFINITY }: FileRange): Promise<FileDownload> {
    this.#begin();
    this.reads += 1;
    let isOver = false;
    const close = (): void => {
      if (isOver) return;
      isOver = true;
      this.transfers -= 1;
      void file.close();
    };
    return file.stat().then(({ size, mtimeMs }) => {
      const begin = Math.min(offset, size);
      const end = begin + Math.min(length, size - begin);
      let at = begin;
      return {
        size,
        offset: begin,
        length: end - begin,
        modifiedAtUnixMs: mtimeMs,
        close,
        read: async () => {
          if (isOver) throw new AgentError("GUEST_UNREACHABLE", "the reader has left");
          const piece = Buffer.alloc(Math.min(PIECE_BYTES, end - at));
          if (piece.length === 0) return null;
          const { bytesRead } = await file.read(piece, 0, piece.length, at);
          at += bytesRead;
          return piece.subarray(0, bytesRead);
        },
      };
    });
  }

  #begin(): void {
    this.transfers += 1;
    this.transfersMax = Math.max(this.transfersMax, this.transfers);
  }

  #place(path: Uint8Array): string {
    return join(this.dir, Buffer.from(path).toString("latin1"));
  }

  /** As a guest does: no link is followed on the way. */
  #at<T>(path: Uint8Array, act: (found: string) => Promise<T>): Promise<T> {
    return this.#do(async () => {
      const parts = Buffer.from(path).toString("latin1").split("/").slice(1, -1);
      for (let depth = 1; depth <= parts.length; depth++)
        await this.#refuseLink(join(this.dir, ...parts.slice(0, depth)));
      return act(this.#place(path));
    });
  }

  async #refuseLink(found: string): Promise<void> {
    if ((await lstat(found).catch(() => null))?.isSymbolicLink() === true) throw new AgentError("FILE_IS_SYMLINK");
  }

  async #do<T>(act: () => Promise<T>): Promise<T> {
    try {
      return await act();
    } catch (cause) {
      const { code = "" } = cause as NodeJS.ErrnoException;
      if (cause instanceof AgentError) throw cause;
      throw new AgentError(CODES[code] ?? "GUEST_ERROR", code, { cause });
    }
  }

  async #entry(found: string, path: Uint8Array): Promise<FileEntry> {
    const stat = await lstat(found);
    const kind = stat.isFile()
      ? "file"
      : stat.isDirectory()
        ? "directory"
        : stat.isSymbolicLink()
          ? "symlink"
          : "other";
    return {
      path,
      kind,
      size: kind === "file" ? stat.size : 0,
      mode: stat.mode & 0o7777,
      uid: stat.uid,
      gid: stat.gid,
      modifiedAtUnixMs: Math.floor(stat.mtimeMs),
      target: kind === "symlink" ? Buffer.from(await readlink(found), "latin1") : new Uint8Array(0),
    };
  }
}
