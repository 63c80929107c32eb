// A tar archive from a sandbox into a directory of this host. The archive is hostile: no name leads out, nothing is
// written through a link, links are made when everything else is there, and owners and set-id bits are not taken over.
import { lstat, mkdir, open, rm, symlink, utimes } from "node:fs/promises";
import { ArchiveError, BLOCK_BYTES, decodeHeader, type Header, NAME_MAX_BYTES, terminated } from "./header.ts";
import { PieceReader } from "./piece-reader.ts";

const PATH_MAX_BYTES = 4096;
const SLASH = 0x2f;

/** The name is too long for a header, which has room for `NAME_MAX_BYTES`. */
const LONG_MAX_BYTES = PATH_MAX_BYTES + NAME_MAX_BYTES;

/**
 * Unpacks into `directory`, which must be there; answers how many entries there were. Throws `ArchiveError` for what is
 * refused or cut off, and what the file system says; what came before stays.
 */
export async function unpacked(archive: ReadableStream<Uint8Array>, directory: string): Promise<number> {
  const reader = new PieceReader(archive);
  const place = new Place(Buffer.from(directory));
  let entries = 0;
  let long: { name?: Uint8Array; target?: Uint8Array } = {};
  try {
    for (;;) {
      const header = decodeHeader(await reader.take(BLOCK_BYTES));
      if (header === null) break;
      if (header.type === "L" || header.type === "K") {
        long[header.type === "L" ? "name" : "target"] = await longText(reader, header.size);
        continue;
      }
      await unpackEntry({ ...header, ...long }, reader, place);
      long = {};
      entries += 1;
    }
    await place.finish();
    return entries;
  } finally {
    await reader.close();
  }
}

async function longText(reader: PieceReader, size: number): Promise<Uint8Array> {
  if (size > LONG_MAX_BYTES) throw new ArchiveError("a name of the archive is too long");
  const text = terminated((await reader.take(size)).slice());
  await reader.take(paddingOf(size));
  return text;
}

async function unpackEntry(header: Header, reader: PieceReader, place: Place): Promise<void> {
  const { type, size, mode, target } = header;
  const parts = partsOf(header.name);
  if (type === "5") return place.directory(parts, mode);
  if (parts.length === 0) throw new ArchiveError("an entry of the archive has no name");
  switch (type) {
    case "2":
      return place.link(parts, target);
    case "0": {
      await using file = await place.file(parts, mode);
      for (let left = size; left > 0;) {
        const piece = await reader.some(left);
        await file.writeFile(piece);
        left -= piece.length;
      }
      await reader.take(paddingOf(size));
      await file.utimes(header.modifiedAtUnixSecs, header.modifiedAtUnixSecs);
      return;
    }
    default:
      throw new ArchiveError(`the archive has an entry of kind ${JSON.stringify(type)}`);
  }
}

function paddingOf(size: number): number {
  return (BLOCK_BYTES - (size % BLOCK_BYTES)) % BLOCK_BYTES;
}

/** The names on the way; none for the directory itself. Throws `ArchiveError` for one that leads out. */
function partsOf(name: Uint8Array): readonly Buffer[] {
  const refuse = (): never => {
    throw new ArchiveError(`the archive has the name ${JSON.stringify(Buffer.from(name).toString())}`);
  };
  if (name.length > PATH_MAX_BYTES || name[0] === SLASH || name.includes(0)) refuse();
  const parts: Buffer[] = [];
  for (let at = 0; at <= name.length;) {
    const slash = name.indexOf(SLASH, at);
    const end = slash < 0 ? name.length : slash;
    const part = Buffer.from(name.subarray(at, end));
    if (part.equals(Buffer.from(".."))) refuse();
    if (part.length > 0 && !part.equals(Buffer.from("."))) parts.push(part);
    at = end + 1;
  }
  return parts;
}

/** Where it goes. */
class Place {
  /** Directories that are known to be no links, as Latin-1. */
  readonly #checked = new Set<string>();
  readonly #modes: { readonly path: Buffer; readonly mode: number }[] = [];
  readonly #links: { readonly path: Buffer; readonly target: Uint8Array }[] = [];

  constructor(private readonly base: Buffer) {}

  async directory(parts: readonly Buffer[], mode: number): Promise<void> {
    await this.#enter(parts);
    // Last, because one may forbid to write in it.
    if (parts.length > 0) this.#modes.push({ path: this.#path(parts), mode });
  }

  /** A new file, in place of whatever had the name and is no directory. */
  async file(parts: readonly Buffer[], mode: number) {
    const path = await this.#free(parts);
    const file = await open(path, "wx", 0o600);
    await file.chmod(mode);
    return file;
  }

  async link(parts: readonly Buffer[], target: Uint8Array): Promise<void> {
    this.#links.push({ path: await this.#free(parts), target: target.slice() });
  }

  async finish(): Promise<void> {
    for (const { path, target } of this.#links) await symlink(Buffer.from(target), path);
    for (const { path, mode } of this.#modes.reverse()) {
      await using handle = await open(path, "r");
      await handle.chmod(mode);
    }
  }

  async #free(parts: readonly Buffer[]): Promise<Buffer> {
    await this.#enter(parts.slice(0, -1));
    const path = this.#path(parts);
    await rm(path, { force: true });
    return path;
  }

  /** Makes the directories on the way, and refuses what is none. */
  async #enter(parts: readonly Buffer[]): Promise<void> {
    for (let count = 1; count <= parts.length; count++) {
      const path = this.#path(parts.slice(0, count));
      const key = path.toString("latin1");
      if (this.#checked.has(key)) continue;
      await mkdir(path, 0o700).catch((error: NodeJS.ErrnoException) => {
        if (error.code !== "EEXIST") throw error;
      });
      if (!(await lstat(path)).isDirectory()) throw new ArchiveError(`${path} is no directory`);
      this.#checked.add(key);
    }
  }

  #path(parts: readonly Buffer[]): Buffer {
    return Buffer.concat([this.base, ...parts.flatMap((part) => [Buffer.from([SLASH]), part])]);
  }
}
