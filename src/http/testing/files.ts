// Files for tests of the HTTP surface: a flat map of paths that every sandbox shares, and feeds that the test fills.
import type {
  ByteSource,
  FileChange,
  FileDownload,
  FileEntry,
  FileRange,
  WriteOptions,
} from "../../contracts/files.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { FileOperations, SandboxChanges } from "../../sandbox/files/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";

type Next = Awaited<ReturnType<SandboxChanges["next"]>>;

export class FakeFiles implements FileOperations {
  readonly content = new Map<string, Uint8Array>();
  /** What was asked, in order. */
  readonly calls: { readonly name: string; readonly path: string; readonly options?: unknown }[] = [];
  /** Answers of the feeds to come; a feed whose answers are used up is silent. */
  changes: Next[] = [];
  archiveBytes = 1024;
  /** Pieces that downloads come in, and after how many bytes they fail. */
  pieceBytes = 64 * 1024;
  failAfterBytes = Number.POSITIVE_INFINITY;
  /** Bytes that were asked for by readers of downloads. */
  bytesRead = 0;
  closed = 0;

  async stat(_: Caller, __: string, path: Uint8Array): Promise<FileEntry> {
    return this.#entry(path, this.#find("stat", path));
  }

  async list(_: Caller, __: string, path: Uint8Array): Promise<readonly FileEntry[]> {
    this.#note("list", path);
    return [...this.content].map(([name, content]) => this.#entry(Buffer.from(name, "latin1"), content));
  }

  async makeDirectory(_: Caller, __: string, path: Uint8Array, mode: number): Promise<boolean> {
    this.#note("mkdir", path, mode);
    return true;
  }

  async remove(_: Caller, __: string, path: Uint8Array, recursive: boolean): Promise<number> {
    this.#note("remove", path, recursive);
    return 1;
  }

  async move(_: Caller, __: string, from: Uint8Array, to: Uint8Array): Promise<void> {
    this.#note("move", from, Buffer.from(to).toString());
  }

  async read(_: Caller, __: string, path: Uint8Array, range: FileRange): Promise<FileDownload> {
    const content = this.#find("read", path);
    const size = content.length;
    const offset = range.fromEnd ? Math.max(0, size - range.offset) : Math.min(range.offset, size);
    const length = Math.min(range.length ?? size, size - offset);
    return this.#download(content.subarray(offset, offset + length), { size, offset, length });
  }

  async write(_: Caller, __: string, path: Uint8Array, options: WriteOptions, content: ByteSource): Promise<number> {
    this.#note("write", path, options);
    const bytes = await gather(content);
    this.content.set(key(path), bytes);
    return bytes.length;
  }

  async readArchive(_: Caller, __: string, path: Uint8Array): Promise<FileDownload> {
    this.#note("archive", path);
    return this.#download(new Uint8Array(this.archiveBytes), { size: 0, offset: 0, length: 0 });
  }

  async writeArchive(_: Caller, __: string, path: Uint8Array, content: ByteSource): Promise<number> {
    this.#note("unpack", path);
    return (await gather(content)).length;
  }

  async watch(_: Caller, __: string, path: Uint8Array, recursive: boolean): Promise<SandboxChanges> {
    this.#note("watch", path, recursive);
    const answers = this.changes;
    return {
      next: () => {
        const next = answers.shift();
        return next === undefined ? new Promise(() => {}) : Promise.resolve(next);
      },
      close: () => {
        this.closed += 1;
      },
    };
  }

  #note(name: string, path: Uint8Array, options?: unknown): void {
    this.calls.push({ name, path: key(path), ...(options !== undefined && { options }) });
  }

  #find(name: string, path: Uint8Array): Uint8Array {
    this.#note(name, path);
    const content = this.content.get(key(path));
    if (content === undefined) throw new AgentError("PATH_NOT_FOUND", `path not found: ${key(path)}`);
    return content;
  }

  #entry(path: Uint8Array, content: Uint8Array): FileEntry {
    const target = new Uint8Array(0);
    return { path, kind: "file", size: content.length, mode: 0o644, uid: 1, gid: 2, modifiedAtUnixMs: 0, target };
  }

  #download(content: Uint8Array, part: Pick<FileDownload, "size" | "offset" | "length">): FileDownload {
    let sent = 0;
    return {
      ...part,
      modifiedAtUnixMs: 0,
      read: async () => {
        if (sent >= this.failAfterBytes) throw new AgentError("GUEST_UNREACHABLE");
        const piece = content.subarray(sent, sent + this.pieceBytes);
        sent += piece.length;
        this.bytesRead += piece.length;
        return piece.length === 0 ? null : piece;
      },
      close: () => {
        this.closed += 1;
      },
    };
  }
}

/** Any bytes as a key: one character each. */
function key(path: Uint8Array): string {
  return Buffer.from(path).toString("latin1");
}

async function gather(content: ByteSource): Promise<Uint8Array> {
  const pieces: Uint8Array[] = [];
  for (let piece = await content.read(); piece !== null; piece = await content.read()) pieces.push(piece);
  return Buffer.concat(pieces);
}

/** A change of one path. */
export function changeOf(kind: FileChange["kind"], path: string, renamedTo = ""): FileChange {
  return { kind, path: Buffer.from(path), renamedTo: Buffer.from(renamedTo) };
}
