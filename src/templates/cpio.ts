// The archive that an initrd is: files in the `newc` form of cpio, sorted by name, without times or owners, so that equal
// content gives equal bytes.
const HEADER_BYTES = 110;
const TRAILER = "TRAILER!!!";
const REGULAR = 0o100000;
const DIRECTORY = 0o040000;

/** A file, or a directory when there is no content. Paths are relative; parents must be entries too. */
export interface CpioEntry {
  readonly path: string;
  readonly mode: number;
  readonly content?: Uint8Array;
}

/** The whole archive, without compression: the kernel unpacks it faster than it could read it compressed. */
export function cpioArchive(entries: readonly CpioEntry[]): Uint8Array {
  const sorted = [...entries].sort((left, right) => (left.path < right.path ? -1 : 1));
  const parts = sorted.flatMap((entry, index) => {
    const type = entry.content === undefined ? DIRECTORY : REGULAR;
    return member(entry.path, type | entry.mode, index + 1, entry.content ?? new Uint8Array(0));
  });
  return Buffer.concat([...parts, ...member(TRAILER, 0, 0, new Uint8Array(0))]);
}

function member(path: string, mode: number, inode: number, content: Uint8Array): Uint8Array[] {
  const name = Buffer.from(`${path}\0`);
  const links = (mode & DIRECTORY) === DIRECTORY ? 2 : 1;
  // Inode, mode, uid, gid, links, mtime, size, device (2), special device (2), length of the name, checksum.
  const fields = [inode, mode, 0, 0, links, 0, content.length, 0, 0, 0, 0, name.length, 0];
  const header = Buffer.from(`070701${fields.map((field) => field.toString(16).padStart(8, "0")).join("")}`);
  return [header, name, padding(HEADER_BYTES + name.length), content, padding(content.length)];
}

function padding(length: number): Uint8Array {
  return new Uint8Array((4 - (length % 4)) % 4);
}
