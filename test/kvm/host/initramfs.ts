// The memory file system that the kernel starts from, as a "newc" archive: the format has a header of text for each file.
import { readdir, readFile, stat } from "node:fs/promises";
import { join } from "node:path";

const REGULAR = 0o100_000;
const DIRECTORY = 0o040_000;
const ALIGNMENT = 4;
const END = "TRAILER!!!";

interface Entry {
  /** Without a slash in front. */
  readonly path: string;
  readonly mode: number;
  readonly content: Uint8Array;
}

/** Collects files, each by the path that it has inside. */
export class Initramfs {
  readonly #entries: Entry[] = [];

  async addFile(path: string, from: string): Promise<void> {
    const { mode } = await stat(from);
    this.#entries.push({ path, mode: REGULAR | (mode & 0o777), content: await readFile(from) });
  }

  addFolder(path: string): void {
    this.#entries.push({ path, mode: DIRECTORY | 0o755, content: new Uint8Array(0) });
  }

  /** A folder with the files that lie in it, without those below. */
  async addFilesOf(path: string, from: string): Promise<void> {
    this.addFolder(path);
    for (const name of (await readdir(from)).sort()) await this.addFile(`${path}/${name}`, join(from, name));
  }

  bytes(): Uint8Array {
    const entries = [...this.#entries, { path: END, mode: 0, content: new Uint8Array(0) }];
    return Buffer.concat(entries.flatMap((entry, index) => [header(entry, index + 1), padded(entry.content)]));
  }
}

function header({ path, mode, content }: Entry, inode: number): Uint8Array {
  const links = 1;
  const nameBytes = Buffer.byteLength(path) + 1;
  // Inode, mode, uid, gid, links, time, size, two device numbers twice, length of the name, checksum.
  const fields = [inode, mode, 0, 0, links, 0, content.length, 0, 0, 0, 0, nameBytes, 0];
  const text = fields.map((field) => field.toString(16).padStart(8, "0")).join("");
  return padded(Buffer.from(`070701${text}${path}\0`));
}

function padded(bytes: Uint8Array): Uint8Array {
  return Buffer.concat([bytes, new Uint8Array((ALIGNMENT - (bytes.length % ALIGNMENT)) % ALIGNMENT)]);
}
