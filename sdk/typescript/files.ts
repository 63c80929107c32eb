// The files of one sandbox: looked at, arranged, moved both ways, watched. A path is absolute, from the root of what the
// sandbox may write; one that is not UTF-8 is given as its bytes.
import { toBase64 } from "./base64.ts";
import { ApiError } from "./errors.ts";
import { type CallOptions, type RetryOptions, retried } from "./retry.ts";
import { segment, type Content, type Query, type Transport } from "./transport.ts";
import type { FileEntry } from "./types.ts";
import { downloaded } from "./download.ts";
import { uploaded } from "./upload.ts";
import { type WatchFrame, watched } from "./watch.ts";

export type Path = string | Uint8Array;

export interface ReadOptions extends RetryOptions {
  /** The first byte; 0 by default. */
  readonly offset?: number;
  /** How many bytes at most; all by default. */
  readonly length?: number;
}

export interface WriteOptions extends RetryOptions {
  /** Permission bits; those of the file that is replaced, or 0o644. */
  readonly mode?: number;
}

/** Every method rejects with `ApiError` (`PATH_NOT_FOUND`, `FILE_DENIED`, …) or `UnreachableError`. */
export class Files {
  readonly #path: string;

  constructor(
    private readonly transport: Transport,
    sandboxId: string,
  ) {
    this.#path = `/v1/sandboxes/${segment(sandboxId)}/files`;
  }

  /** What is at `path`; a symbolic link is told, not followed. */
  async stat(path: Path, options: RetryOptions = {}): Promise<FileEntry> {
    return this.#look("stat", path, options);
  }

  /** One level, sorted by name. Rejects with `NOT_A_DIRECTORY`. */
  async list(path: Path, options: RetryOptions = {}): Promise<readonly FileEntry[]> {
    return (await this.#look<{ items: readonly FileEntry[] }>("list", path, options)).items;
  }

  /** Makes a directory and those above it; false when it was there. */
  async makeDirectory(path: Path, { mode, signal }: CallOptions & { readonly mode?: number } = {}): Promise<boolean> {
    const json = { ...pathFields(path), mode };
    return (await this.transport.json<{ created: boolean }>("POST", `${this.#path}/mkdir`, { json, signal })).created;
  }

  /** Removes a file, a link itself or a directory; how many names are gone. Rejects with `DIRECTORY_NOT_EMPTY`. */
  async remove(
    path: Path,
    { recursive, signal }: CallOptions & { readonly recursive?: boolean } = {},
  ): Promise<number> {
    const query = { ...pathFields(path), recursive };
    return (await this.transport.json<{ removed: number }>("DELETE", this.#path, { query, signal })).removed;
  }

  /** Renames a file or a directory; a file at the new name is replaced. */
  async move(from: string, to: string, { signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("POST", `${this.#path}/move`, { json: { from, to }, signal });
  }

  /** The content of a regular file, or a part of it, as it comes; goes on where a connection broke. */
  async *stream(path: Path, options: ReadOptions = {}): AsyncGenerator<Uint8Array, void, void> {
    yield* downloaded(this.transport, this.#path, pathFields(path), options);
  }

  /** As `stream`, whole. */
  async read(path: Path, options: ReadOptions = {}): Promise<Uint8Array> {
    const pieces: Uint8Array[] = [];
    for await (const piece of this.stream(path, options)) pieces.push(piece);
    return new Uint8Array(await new Blob(pieces as Uint8Array<ArrayBuffer>[]).arrayBuffer());
  }

  /** Replaces or makes a file, and the directories above it, when all has come. A stream is not sent a second time. */
  async write(path: Path, content: Content | string, { mode, ...options }: WriteOptions = {}): Promise<number> {
    const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
    const query = { ...pathFields(path), mode: octal(mode) };
    const { signal } = options;
    const put = () => this.transport.json<{ size: number }>("PUT", this.#path, { bytes, query, signal });
    return (await (bytes instanceof ReadableStream ? put() : retried(options, put))).size;
  }

  /** As `write`, for content that is worth going on with: after a cut, only what is missing is sent. */
  async upload(path: string, content: Blob, options: WriteOptions = {}): Promise<void> {
    await uploaded(this.transport, this.#path, this, path, content, options);
  }

  /** A tar archive of a directory's content, or of one file. Its end tells that it is whole. */
  async archive(path: Path, { signal }: CallOptions = {}): Promise<ReadableStream<Uint8Array>> {
    const response = await this.transport.request("GET", `${this.#path}/archive`, {
      query: pathFields(path),
      accept: "application/x-tar",
      signal,
    });
    return response.body as ReadableStream<Uint8Array>;
  }

  /** Unpacks a tar archive into a directory, which is made; how many entries it had. Rejects with `ARCHIVE_REFUSED`. */
  async unpack(path: Path, archive: Content, { signal }: CallOptions = {}): Promise<number> {
    const options = { query: pathFields(path), bytes: archive, signal };
    return (await this.transport.json<{ entries: number }>("PUT", `${this.#path}/archive`, options)).entries;
  }

  /** Changes below a directory, until it or the sandbox is gone. After a broken connection comes an `overflow`. */
  async *watch(
    path: Path,
    { recursive, ...options }: RetryOptions & { readonly recursive?: boolean } = {},
  ): AsyncGenerator<WatchFrame, void, void> {
    yield* watched(this.transport, `${this.#path}/watch`, { ...pathFields(path), recursive }, options);
  }

  /** Looking changes nothing, so it may be done again. */
  #look<T>(what: string, path: Path, options: RetryOptions): Promise<T> {
    const query = pathFields(path);
    const { signal } = options;
    return retried(options, () => this.transport.json<T>("GET", `${this.#path}/${what}`, { query, signal }));
  }
}

/** Throws `ApiError` when the name cannot be one of a file. */
export function pathFields(path: Path): Query {
  if (typeof path !== "string") return { path_base64: toBase64(path) };
  if (!path.startsWith("/")) throw new ApiError(0, "PATH_INVALID", "a path in a sandbox begins with a slash");
  return { path };
}

export function octal(mode: number | undefined): string | undefined {
  return mode?.toString(8).padStart(3, "0");
}
