// The audit trail: one line for each request that was answered, in the log and, where the operator wants one, in a file
// of its own that is rotated by size.
import { constants } from "node:fs";
import { open, rename, type FileHandle } from "node:fs/promises";
import type { Logger } from "../contracts/log.ts";

const TARGET = "fluxvm_audit";
const FILE_MAX_BYTES = 16 * 1024 * 1024;
const FILES_KEPT = 8;
/** Bytes that may wait for a slow disk; what comes beyond is counted and reported, and is in the log all the same. */
const WAITING_MAX_BYTES = 4 * 1024 * 1024;

/** The fields as they are written. */
export interface AuditEntry {
  readonly actor: string;
  readonly role: string;
  readonly tenant: string | null;
  readonly method: string;
  /** Without the query, which may hold what a client should not have put there. */
  readonly path: string;
  readonly status: number;
  readonly duration_ms: number;
  readonly request_id: string;
}

export interface AuditOptions {
  readonly log: Logger;
  /** Absolute path; none when null. Rotated files are `<file>.1` (newest) to `<file>.8`. */
  readonly file: string | null;
  readonly fileMaxBytes?: number;
  readonly filesKept?: number;
}

export interface Audit {
  record(entry: AuditEntry): void;
  /** Resolves when everything recorded so far is in the file. */
  close(): Promise<void>;
}

/** Rejects when the file cannot be opened: an audit trail that is silently missing is worse than no start. */
export async function openAudit(options: AuditOptions): Promise<Audit> {
  const log = options.log.child({ target: TARGET });
  const { file, fileMaxBytes = FILE_MAX_BYTES, filesKept = FILES_KEPT } = options;
  const trail = file === null ? null : await AuditFile.open(file, fileMaxBytes, filesKept, options.log);
  return {
    record: (entry) => {
      log.info({ ...entry }, "request");
      trail?.append(`${JSON.stringify({ time: new Date().toISOString(), target: TARGET, ...entry })}\n`);
    },
    close: async () => trail?.close(),
  };
}

class AuditFile {
  readonly #path: string;
  readonly #maxBytes: number;
  readonly #kept: number;
  readonly #log: Logger;
  #handle: FileHandle;
  #bytes: number;
  #waiting: string[] = [];
  #waitingBytes = 0;
  #dropped = 0;
  #failing = false;
  #writing: Promise<void> | null = null;

  private constructor(path: string, maxBytes: number, kept: number, log: Logger, handle: FileHandle, bytes: number) {
    this.#path = path;
    this.#maxBytes = maxBytes;
    this.#kept = kept;
    this.#log = log;
    this.#handle = handle;
    this.#bytes = bytes;
  }

  static async open(path: string, maxBytes: number, kept: number, log: Logger): Promise<AuditFile> {
    const handle = await openAppend(path);
    return new AuditFile(path, maxBytes, kept, log, handle, (await handle.stat()).size);
  }

  append(line: string): void {
    if (this.#waitingBytes + line.length > WAITING_MAX_BYTES) {
      this.#dropped++;
      return;
    }
    this.#waiting.push(line);
    this.#waitingBytes += line.length;
    this.#writing ??= this.#writeAll();
  }

  async close(): Promise<void> {
    await this.#writing;
    await this.#handle.close();
  }

  async #writeAll(): Promise<void> {
    while (this.#waiting.length > 0) {
      const first = Buffer.byteLength(this.#waiting[0] ?? "");
      const fits = this.#bytes === 0 || this.#bytes + first <= this.#maxBytes;
      const lines = this.#take(fits ? this.#maxBytes - this.#bytes : this.#maxBytes);
      try {
        if (!fits) await this.#rotate();
        await this.#handle.appendFile(lines);
        this.#bytes += lines.length;
        this.#report(null);
      } catch (error) {
        this.#report(error);
      }
    }
    this.#writing = null;
  }

  /** Takes the waiting lines that fit into `roomBytes`, at least one. */
  #take(roomBytes: number): Buffer {
    let bytes = 0;
    let count = 0;
    for (const line of this.#waiting) {
      bytes += Buffer.byteLength(line);
      if (count > 0 && bytes > roomBytes) break;
      count++;
    }
    const text = this.#waiting.splice(0, count).join("");
    this.#waitingBytes -= text.length;
    return Buffer.from(text);
  }

  async #rotate(): Promise<void> {
    for (let n = this.#kept - 1; n >= 1; n--) {
      await renameIfThere(`${this.#path}.${n}`, `${this.#path}.${n + 1}`);
    }
    await renameIfThere(this.#path, `${this.#path}.1`);
    const fresh = await openAppend(this.#path);
    await this.#handle.close();
    this.#handle = fresh;
    this.#bytes = (await fresh.stat()).size;
  }

  /** Says once that writing fails, and once that it works again with the number of lines that are missing. */
  #report(error: unknown): void {
    if (error !== null && !this.#failing)
      this.#log.error({ error, file: this.#path }, "the audit file cannot be written");
    if (error === null && this.#dropped > 0) {
      this.#log.error({ dropped: this.#dropped, file: this.#path }, "lines are missing from the audit file");
      this.#dropped = 0;
    }
    this.#failing = error !== null;
  }
}

function openAppend(path: string): Promise<FileHandle> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_APPEND | constants.O_NOFOLLOW;
  return open(path, flags, 0o600);
}

async function renameIfThere(from: string, to: string): Promise<void> {
  try {
    await rename(from, to);
  } catch (error) {
    if (!(error instanceof Error && "code" in error && error.code === "ENOENT")) throw error;
  }
}
