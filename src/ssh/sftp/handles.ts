// What a client has open: files and directories, by the handle that it names. Their number is bounded, and so is that of
// the transfers under way, because the guest has room for few of them.
import { limits } from "../../config/limits.ts";
import type { FileEntry } from "../../contracts/files.ts";
import type { OpenFile } from "./open-file.ts";
import { SftpRefusal, Status } from "./status.ts";

const HANDLE_BYTES = 4;

/** The rest of a directory's entries. */
export interface OpenDirectory {
  readonly entries: readonly FileEntry[];
  next: number;
}

export class Handles {
  readonly #files = new Map<number, OpenFile>();
  readonly #directories = new Map<number, OpenDirectory>();
  /** The least recently used first. */
  readonly #transferring = new Set<OpenFile>();
  #last = 0;

  /** Refuses what would be one too many. */
  checkFile(): void {
    if (this.#files.size >= limits.sftpFilesMax) throw new SftpRefusal(Status.failure, "too many files are open");
  }

  checkDirectory(): void {
    if (this.#directories.size < limits.sftpDirectoriesMax) return;
    throw new SftpRefusal(Status.failure, "too many directories are open");
  }

  addFile(file: OpenFile): Uint8Array {
    this.#last += 1;
    this.#files.set(this.#last, file);
    return handleOf(this.#last);
  }

  addDirectory(entries: readonly FileEntry[]): Uint8Array {
    this.#last += 1;
    this.#directories.set(this.#last, { entries, next: 0 });
    return handleOf(this.#last);
  }

  file(handle: Uint8Array): OpenFile {
    const file = this.#files.get(numberOf(handle));
    if (file === undefined) throw unknownHandle();
    return file;
  }

  directory(handle: Uint8Array): OpenDirectory {
    const directory = this.#directories.get(numberOf(handle));
    if (directory === undefined) throw unknownHandle();
    return directory;
  }

  /** Drops the handle. Rejects with what became of bytes that were believed to be written. */
  async close(handle: Uint8Array): Promise<void> {
    const number = numberOf(handle);
    if (this.#directories.delete(number)) return;
    const file = this.file(handle);
    this.#files.delete(number);
    this.#transferring.delete(file);
    try {
      await file.settle();
    } finally {
      file.abandon();
    }
  }

  /** Makes room for a transfer of `file`, by letting the one rest that was used least recently. */
  async transfers(file: OpenFile): Promise<void> {
    this.#transferring.delete(file);
    this.#transferring.add(file);
    for (const other of this.#transferring) {
      if (this.#transferring.size <= limits.sftpTransfersMax) return;
      this.#transferring.delete(other);
      await other.rest();
    }
  }

  /** Resolves when everything that was written can be seen by whoever looks at paths. */
  async settle(): Promise<void> {
    for (const file of this.#transferring) if (file.isWriting) await file.rest();
  }

  /** The client is gone. */
  abandon(): void {
    for (const file of this.#files.values()) file.abandon();
  }
}

function handleOf(number: number): Uint8Array {
  const bytes = Buffer.alloc(HANDLE_BYTES);
  bytes.writeUInt32BE(number);
  return bytes;
}

function numberOf(handle: Uint8Array): number {
  return handle.length === HANDLE_BYTES ? Buffer.from(handle).readUInt32BE() : 0;
}

function unknownHandle(): SftpRefusal {
  return new SftpRefusal(Status.failure, "no such handle is open");
}
