// The files of a sandbox as its guest agent gives them: looked at, arranged, streamed both ways, watched. Paths are bytes,
// absolute from the root of what the sandbox may write, as everywhere on the guest channel.
import type { EntryKind } from "./channel.ts";

export interface FileEntry {
  readonly path: Uint8Array;
  readonly kind: EntryKind;
  /** Bytes of a regular file, else 0. */
  readonly size: number;
  /** Permission and set-id bits. */
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly modifiedAtUnixMs: number;
  /** Target of a symbolic link, else empty. */
  readonly target: Uint8Array;
}

export const CHANGE_KINDS = ["created", "modified", "removed", "renamed", "overflow"] as const;

export interface FileChange {
  /** `overflow`: changes were lost; without a path. `renamed`: `path` is the old name. */
  readonly kind: (typeof CHANGE_KINDS)[number];
  readonly path: Uint8Array;
  /** The new name, else empty. */
  readonly renamedTo: Uint8Array;
}

/** Content that is taken piece by piece; the next piece is not produced before it is asked for. */
export interface ByteSource {
  /** The next bytes, null after the last. */
  read(): Promise<Uint8Array | null>;
  /** Nobody reads any more; more than once does no harm. */
  close(): void;
}

/** A file, a part of one, or an archive on its way to the host. It was sent whole when `read` has answered null. */
export interface FileDownload extends ByteSource {
  /** Bytes of the whole file. */
  readonly size: number;
  /** What is sent: from here … */
  readonly offset: number;
  /** … so many bytes. 0 for archives, whose length nobody knows. */
  readonly length: number;
  readonly modifiedAtUnixMs: number;
}

/** Changes as they happen. */
export interface ChangeFeed {
  /** The next changes, null when the watched directory is gone. */
  next(): Promise<readonly FileChange[] | null>;
  close(): void;
}

export interface FileRange {
  /** Counts back from the end with `fromEnd`. */
  readonly offset: number;
  readonly fromEnd: boolean;
  /** Absent: to the end. */
  readonly length?: number;
}

export interface WriteOptions {
  /** Permission bits; absent: those of the file that is replaced, or 0o644. */
  readonly mode?: number;
  /** Absent: the file is replaced when all is there. Else it is written in place from here, which must be its size. */
  readonly offset?: number;
}

export interface CreateOptions {
  /** Permission bits of a file that is made. */
  readonly mode: number;
  /** A name that is taken is `PATH_EXISTS`. */
  readonly exclusive: boolean;
  /** A file that is there loses its content. */
  readonly empty: boolean;
}

/** What is absent stays as it is. */
export interface FileAttributes {
  /** Permission and set-id bits. */
  readonly mode?: number;
  readonly accessedAtUnixMs?: number;
  readonly modifiedAtUnixMs?: number;
  /** Of a regular file, which is cut or filled with zeros. */
  readonly size?: number;
}

/** Every method rejects with an `AgentError` (`PATH_NOT_FOUND`, `PATH_EXISTS`, `FILE_…`, `DIRECTORY_NOT_EMPTY`, `WORKSPACE_FULL`, …). */
export interface GuestFiles {
  stat(path: Uint8Array): Promise<FileEntry>;
  /** What the path leads to when its links are followed; `path` of the answer has none. */
  resolve(path: Uint8Array): Promise<FileEntry>;
  /** One level, sorted by name. */
  list(path: Uint8Array): Promise<readonly FileEntry[]>;
  /** With its parents; false when it was there already. */
  makeDirectory(path: Uint8Array, mode: number): Promise<boolean>;
  /** How many names are gone. */
  remove(path: Uint8Array, recursive: boolean): Promise<number>;
  move(from: Uint8Array, to: Uint8Array): Promise<void>;
  read(path: Uint8Array, range: FileRange): Promise<FileDownload>;
  /** Makes missing parents. Resolves to the size that the file has then. */
  write(path: Uint8Array, options: WriteOptions, content: ByteSource): Promise<number>;
  /** Into a file that is there, from `offset` or at its end. Resolves to the size that it has then. */
  writeAt(path: Uint8Array, offset: number | null, content: ByteSource): Promise<number>;
  /** Resolves to the size of the file. */
  create(path: Uint8Array, options: CreateOptions): Promise<number>;
  setAttributes(path: Uint8Array, attributes: FileAttributes): Promise<void>;
  symlink(path: Uint8Array, target: Uint8Array): Promise<void>;
  /** A second name of a file. */
  link(from: Uint8Array, to: Uint8Array): Promise<void>;
  /** A tar archive of a directory or a file. */
  readArchive(path: Uint8Array): Promise<FileDownload>;
  /** Unpacks a tar archive into a directory. Resolves to the number of its entries. */
  writeArchive(path: Uint8Array, content: ByteSource): Promise<number>;
  watch(path: Uint8Array, recursive: boolean): Promise<ChangeFeed>;
}
