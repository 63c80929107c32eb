// A directory of this host as a tar archive, read while it is sent: regular files, directories and links; other kinds are
// left out. Names begin below the directory.
import { constants, lstat, open, readdir, readlink } from "node:fs/promises";
import { BLOCK_BYTES, encodeHeader, type Header, NAME_MAX_BYTES } from "./header.ts";

const PIECE_BYTES = 256 * 1024;
const NOTHING = new Uint8Array(0);
const SLASH = Buffer.from("/");

/** As a stream, which fails with what the file system says, and when a file became shorter meanwhile. */
export function packedStream(directory: string): ReadableStream<Uint8Array> {
  const pieces = packed(directory);
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await pieces.next();
      if (done === true) controller.close();
      else controller.enqueue(value!);
    },
    async cancel() {
      await pieces.return();
    },
  });
}

/** The archive's pieces. Throws what the file system says, and an `Error` when a file became shorter meanwhile. */
async function* packed(directory: string): AsyncGenerator<Uint8Array, void, void> {
  yield* below(Buffer.from(directory), NOTHING);
  yield new Uint8Array(2 * BLOCK_BYTES);
}

async function* below(directory: Buffer, prefix: Uint8Array): AsyncGenerator<Uint8Array, void, void> {
  const names = (await readdir(directory, { encoding: "buffer" })).toSorted(Buffer.compare);
  for (const one of names) {
    const path = Buffer.concat([directory, SLASH, one]);
    const name = Buffer.concat([prefix, one]);
    const stat = await lstat(path);
    const entry = { name, mode: stat.mode & 0o777, modifiedAtUnixSecs: Math.floor(stat.mtimeMs / 1000) };
    if (stat.isDirectory()) {
      const inside = Buffer.concat([name, SLASH]);
      yield* headers({ ...entry, name: inside, type: "5", size: 0, target: NOTHING });
      yield* below(path, inside);
    } else if (stat.isSymbolicLink()) {
      yield* headers({ ...entry, type: "2", size: 0, target: await readlink(path, { encoding: "buffer" }) });
    } else if (stat.isFile()) {
      yield* file(path, entry);
    }
  }
}

async function* file(
  path: Buffer,
  entry: Pick<Header, "name" | "mode" | "modifiedAtUnixSecs">,
): AsyncGenerator<Uint8Array, void, void> {
  await using handle = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  const { size } = await handle.stat();
  yield* headers({ ...entry, type: "0", size, target: NOTHING });
  for (let left = size; left > 0;) {
    // A new one each time: what was handed on may not have been sent.
    const piece = new Uint8Array(Math.min(left, PIECE_BYTES));
    const { bytesRead } = await handle.read(piece);
    if (bytesRead === 0) throw new Error(`${path} became shorter while it was read`);
    left -= bytesRead;
    yield piece.subarray(0, bytesRead);
  }
  yield padding(size);
}

/** The header, behind those of a long name or target. */
function* headers(header: Header): Generator<Uint8Array, void, void> {
  const { name, target } = header;
  if (target.length > NAME_MAX_BYTES) yield* long("K", target);
  if (name.length > NAME_MAX_BYTES) yield* long("L", name);
  yield encodeHeader({
    ...header,
    name: name.subarray(0, NAME_MAX_BYTES),
    target: target.subarray(0, NAME_MAX_BYTES),
  });
}

function* long(type: string, text: Uint8Array): Generator<Uint8Array, void, void> {
  const name = Buffer.from("././@LongLink");
  const size = text.length + 1;
  yield encodeHeader({ name, type, size, mode: 0, modifiedAtUnixSecs: 0, target: NOTHING });
  yield text;
  yield new Uint8Array(1);
  yield padding(size);
}

function padding(size: number): Uint8Array {
  return new Uint8Array((BLOCK_BYTES - (size % BLOCK_BYTES)) % BLOCK_BYTES);
}
