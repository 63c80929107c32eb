// The files of a guest over protocol version 2; each call is a stream of its own.
import { limits } from "../config/limits.ts";
import type {
  ByteSource,
  ChangeFeed,
  CreateOptions,
  FileAttributes,
  FileDownload,
  FileEntry,
  FileRange,
  GuestFiles,
  WriteOptions,
} from "../contracts/files.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { guestViolation } from "./faults.ts";
import { integer } from "./fields.ts";
import { type DownloadOptions, download, type StreamDownload } from "./file-download.ts";
import { ChangeReader, fileEntries } from "./file-entries.ts";
import { upload } from "./file-upload.ts";
import { Channel, type Message, wide } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

type OnConnection = <T>(operation: (connection: GuestConnection) => Promise<T>) => Promise<T>;

/** What came of an operation: entries, and the counts of its end. */
interface Answer {
  readonly entries: FileEntry[];
  readonly count: number;
  readonly size: number;
}

const CONTENT: DownloadOptions = { isEndless: false, isMeasured: true };
const ARCHIVE: DownloadOptions = { isEndless: false, isMeasured: false };
const CHANGES: DownloadOptions = { isEndless: true, isMeasured: false };

export class ConnectedFiles implements GuestFiles {
  /** `on` runs an operation on a connection that is alive. */
  constructor(private readonly on: OnConnection) {}

  stat(path: Uint8Array): Promise<FileEntry> {
    return this.#entry("stat", path);
  }

  resolve(path: Uint8Array): Promise<FileEntry> {
    return this.#entry("resolve", path);
  }

  async list(path: Uint8Array): Promise<readonly FileEntry[]> {
    return (await this.#call("list", { path })).entries;
  }

  async makeDirectory(path: Uint8Array, mode: number): Promise<boolean> {
    return (await this.#call("mkdir", { path, mode })).count > 0;
  }

  async remove(path: Uint8Array, recursive: boolean): Promise<number> {
    return (await this.#call("remove", { path, recursive })).count;
  }

  async move(from: Uint8Array, to: Uint8Array): Promise<void> {
    await this.#call("move", { from, to });
  }

  read(path: Uint8Array, { offset, fromEnd, length }: FileRange): Promise<FileDownload> {
    const args = {
      path,
      offset: wide(offset),
      from_end: fromEnd,
      ...(length !== undefined && { length: wide(length) }),
    };
    return this.on((connection) => download(connection, "read-range", args, CONTENT));
  }

  async write(path: Uint8Array, { mode, offset }: WriteOptions, content: ByteSource): Promise<number> {
    const args = {
      path,
      parents: true,
      ...(mode !== undefined && { mode }),
      ...(offset !== undefined && { offset: wide(offset) }),
    };
    return integer(await this.#upload("write-stream", args, content), "size");
  }

  async writeAt(path: Uint8Array, offset: number | null, content: ByteSource): Promise<number> {
    const args = { path, ...(offset !== null && { offset: wide(offset) }) };
    return integer(await this.#upload("write-at", args, content), "size");
  }

  async create(path: Uint8Array, { mode, exclusive, empty }: CreateOptions): Promise<number> {
    return (await this.#call("create", { path, mode, exclusive, empty })).size;
  }

  async setAttributes(path: Uint8Array, attributes: FileAttributes): Promise<void> {
    const { mode, accessedAtUnixMs, modifiedAtUnixMs, size } = attributes;
    await this.#call("set-attributes", {
      path,
      ...(mode !== undefined && { mode }),
      ...(accessedAtUnixMs !== undefined && { accessed_ms: wide(accessedAtUnixMs) }),
      ...(modifiedAtUnixMs !== undefined && { modified_ms: wide(modifiedAtUnixMs) }),
      ...(size !== undefined && { size: wide(size) }),
    });
  }

  async symlink(path: Uint8Array, target: Uint8Array): Promise<void> {
    await this.#call("symlink", { path, target });
  }

  async link(from: Uint8Array, to: Uint8Array): Promise<void> {
    await this.#call("link", { from, to });
  }

  readArchive(path: Uint8Array): Promise<FileDownload> {
    return this.on((connection) => download(connection, "archive-read", { path }, ARCHIVE));
  }

  async writeArchive(path: Uint8Array, content: ByteSource): Promise<number> {
    return integer(await this.#upload("archive-write", { path }, content), "entries");
  }

  async watch(path: Uint8Array, recursive: boolean): Promise<ChangeFeed> {
    const feed = await this.on((connection) => download(connection, "watch", { path, recursive }, CHANGES));
    return new StreamChanges(feed);
  }

  #upload(op: string, args: Message, content: ByteSource): Promise<Fields> {
    return this.on((connection) => upload(connection, op, args, content));
  }

  async #entry(op: string, path: Uint8Array): Promise<FileEntry> {
    const { entries } = await this.#call(op, { path });
    if (entries.length !== 1) throw guestViolation("not one entry for one path");
    return entries[0]!;
  }

  /** An operation whose answer is small enough to be held. */
  #call(op: string, args: Message): Promise<Answer> {
    return this.on(
      (connection) =>
        new Promise((resolve, reject) => {
          const pieces: Uint8Array[] = [];
          let length = 0;
          const stream = connection.open(
            op,
            args,
            {
              event: () => {},
              data: (channel, bytes) => {
                if (channel !== Channel.output) throw new ProtocolViolation("bytes on another channel than the output");
                length += bytes.length;
                if (length > limits.manifestListingMaxBytes) {
                  connection.abandon(stream, new AgentError("LISTING_TOO_LARGE"));
                  return;
                }
                pieces.push(bytes);
                stream.grant(bytes.length);
              },
              ended: (message) => {
                const entries = fileEntries(Buffer.concat(pieces));
                resolve({ entries, count: integer(message, "entries"), size: integer(message, "size") });
              },
              failed: reject,
            },
            limits.guestFileTimeoutMs,
          );
        }),
    );
  }
}

class StreamChanges implements ChangeFeed {
  readonly #reader = new ChangeReader();

  constructor(private readonly feed: StreamDownload) {}

  async next(): ReturnType<ChangeFeed["next"]> {
    for (;;) {
      const bytes = await this.feed.read();
      if (bytes === null) return null;
      const changes = this.#decode(bytes);
      if (changes.length > 0) return changes;
    }
  }

  close(): void {
    this.feed.close();
  }

  #decode(bytes: Uint8Array) {
    try {
      return this.#reader.push(bytes);
    } catch (error) {
      this.close();
      throw error instanceof ProtocolViolation ? guestViolation(error.message) : error;
    }
  }
}
