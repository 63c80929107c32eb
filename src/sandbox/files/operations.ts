// What can be asked of the files of a sandbox: looked at, arranged, streamed both ways, watched.
import type {
  ByteSource,
  CreateOptions,
  FileAttributes,
  FileChange,
  FileDownload,
  FileEntry,
  FileRange,
  WriteOptions,
} from "../../contracts/files.ts";
import type { Caller } from "../operations.ts";

/** Changes as they happen. */
export interface SandboxChanges {
  /** The next changes, or why there are no more. */
  next(): Promise<readonly FileChange[] | { readonly ended: "sandbox" | "directory" }>;
  close(): void;
}

/**
 * Paths are absolute from the root of what the sandbox may write, without `..`. Every method rejects with `AgentError`:
 * `PATH_INVALID`, `PATH_NOT_FOUND`, `FILE_…`, `NOT_A_DIRECTORY`, `WORKSPACE_FULL` and what any call on a guest may.
 */
export interface FileOperations {
  stat(caller: Caller, id: string, path: Uint8Array): Promise<FileEntry>;
  /** One level, sorted by name. */
  list(caller: Caller, id: string, path: Uint8Array): Promise<readonly FileEntry[]>;
  /** With its parents; false when it was there already. */
  makeDirectory(caller: Caller, id: string, path: Uint8Array, mode: number): Promise<boolean>;
  /** How many names are gone; the root is refused. Rejects with `DIRECTORY_NOT_EMPTY` unless `recursive`. */
  remove(caller: Caller, id: string, path: Uint8Array, recursive: boolean): Promise<number>;
  move(caller: Caller, id: string, from: Uint8Array, to: Uint8Array): Promise<void>;
  read(caller: Caller, id: string, path: Uint8Array, range: FileRange): Promise<FileDownload>;
  /** The size that the file has then. Rejects with `RANGE_NOT_SATISFIABLE` when `offset` is not its size. */
  write(caller: Caller, id: string, path: Uint8Array, options: WriteOptions, content: ByteSource): Promise<number>;
  readArchive(caller: Caller, id: string, path: Uint8Array): Promise<FileDownload>;
  /** How many entries were unpacked. Rejects with `ARCHIVE_REFUSED`; what came before stays. */
  writeArchive(caller: Caller, id: string, path: Uint8Array, content: ByteSource): Promise<number>;
  watch(caller: Caller, id: string, path: Uint8Array, recursive: boolean): Promise<SandboxChanges>;
}

/** What a file system has beyond that, for transports that show one. */
export interface FileSystemOperations extends FileOperations {
  /** What the path leads to when its links are followed; `path` of the answer has none. */
  resolve(caller: Caller, id: string, path: Uint8Array): Promise<FileEntry>;
  /** Into a file that is there, from `offset` or at its end; the size that it has then. */
  writeAt(caller: Caller, id: string, path: Uint8Array, offset: number | null, content: ByteSource): Promise<number>;
  /** The size of the file. Rejects with `PATH_EXISTS` when it is to be a new one and is not. */
  create(caller: Caller, id: string, path: Uint8Array, options: CreateOptions): Promise<number>;
  setAttributes(caller: Caller, id: string, path: Uint8Array, attributes: FileAttributes): Promise<void>;
  /** Rejects with `PATH_EXISTS`; the target is taken as it is. */
  symlink(caller: Caller, id: string, path: Uint8Array, target: Uint8Array): Promise<void>;
  /** A second name of a file. Rejects with `PATH_EXISTS`. */
  link(caller: Caller, id: string, from: Uint8Array, to: Uint8Array): Promise<void>;
}
