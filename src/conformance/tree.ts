// Trees of files for the cases: one with everything that a hostile sandbox could leave behind, and an independent walk
// that says what is in a tree, to compare with what plugins say.
import { createHash } from "node:crypto";
import { chmod, lstat, mkdir, readdir, readFile, readlink, symlink, writeFile } from "node:fs/promises";
import type { ManifestEntry } from "../contracts/channel.ts";
import { compareBytes } from "../contracts/listing.ts";

const DEPTH = 60;
const NAME_MAX_BYTES = 255;

export interface TreeEntry {
  /** Relative to the tree, beginning with `/`. */
  readonly path: Uint8Array;
  readonly entry: ManifestEntry;
}

/** Names that break whoever splits, quotes, decodes or globs. */
const ODD_NAMES: readonly Uint8Array[] = [
  " leading and trailing ",
  "new\nline",
  "trailing newline\n",
  "back\\slash",
  "quote'\"`",
  "$(id) ${x} %s *?[a]",
  "-rf",
  "--",
  "\x01\x1b[31m\x7f",
  "\xff\xfe not UTF-8",
  "é in Latin-1",
  "x".repeat(NAME_MAX_BYTES),
].map((name) => Buffer.from(name, "latin1"));

export function join(directory: string | Uint8Array, name: string | Uint8Array): Buffer {
  return Buffer.concat([Buffer.from(directory as string), Buffer.from("/"), Buffer.from(name as string)]);
}

/** Fills `root` with files, links, FIFOs, odd names, deep directories and unusual modes. */
export async function makeHostileTree(root: string): Promise<void> {
  await writeFile(join(root, "plain"), "plain");
  await writeFile(join(root, "empty"), "");
  await writeFile(
    join(root, "large"),
    new Uint8Array(300_000).map((_, index) => index % 251),
  );
  for (const [index, name] of ODD_NAMES.entries()) await writeFile(join(root, name), `odd ${index}`);
  await mkdir(join(root, "odd"));
  for (const name of ODD_NAMES) {
    await mkdir(join(join(root, "odd"), name));
    await writeFile(join(join(join(root, "odd"), name), "f"), name);
  }
  await makeSortingTraps(root);
  await makeLinks(root);
  await makeFifo(join(root, "fifo"));
  await makeModes(root);
  let deep = join(root, "deep");
  await mkdir(deep);
  for (let level = 0; level < DEPTH; level += 1) {
    deep = join(deep, `level${level}`);
    await mkdir(deep);
  }
  await writeFile(join(deep, "bottom"), "bottom");
}

/** `a`, `a-b`, `a/x`: by bytes, the content of a directory does not follow it at once. */
async function makeSortingTraps(root: string): Promise<void> {
  await mkdir(join(root, "a"));
  await writeFile(join(root, "a/x"), "inside");
  await writeFile(join(root, "a-b"), "beside");
  await writeFile(join(root, "a0"), "after");
}

async function makeLinks(root: string): Promise<void> {
  await symlink("plain", join(root, "link"));
  await symlink("missing\n", join(root, "dangling"));
  await symlink("/etc", join(root, "outside"));
  await symlink(".", join(root, "loop"));
  await symlink(Buffer.from([0xff, 0x20]), join(root, "odd-target"));
}

async function makeFifo(path: Buffer): Promise<void> {
  await Bun.spawn(["mkfifo", "--", path.toString()], { stdout: "ignore", stderr: "ignore" }).exited;
}

async function makeModes(root: string): Promise<void> {
  for (const mode of [0o600, 0o755, 0o4755, 0o2711]) {
    const path = join(root, `mode-${mode.toString(8)}`);
    await writeFile(path, "mode");
    await chmod(path, mode);
  }
  await mkdir(join(root, "sticky"));
  await chmod(join(root, "sticky"), 0o1777);
}

/** Everything under `root` but `root` itself, sorted by path bytes. */
export async function walkTree(root: string | Uint8Array): Promise<TreeEntry[]> {
  const found: TreeEntry[] = [];
  await walk(Buffer.from(root as string), Buffer.alloc(0), found);
  return found.sort((left, right) => compareBytes(left.path, right.path));
}

async function walk(host: Buffer, shown: Buffer, found: TreeEntry[]): Promise<void> {
  for (const name of await readdir(host, { encoding: "buffer" })) {
    const path = join(host, name);
    const entry = await entryAt(path);
    found.push({ path: new Uint8Array(join(shown, name)), entry });
    if (entry.kind === "directory") await walk(path, join(shown, name), found);
  }
}

/** What is at `path`, as a listing has it. */
export async function entryAt(path: Buffer): Promise<ManifestEntry> {
  const stats = await lstat(path);
  const common = { mode: stats.mode & 0o7777, uid: stats.uid, gid: stats.gid };
  const none = new Uint8Array();
  if (stats.isDirectory()) return { kind: "directory", fingerprint: none, size: 0, ...common };
  if (stats.isSymbolicLink()) {
    const target = new Uint8Array(await readlink(path, { encoding: "buffer" }));
    return { kind: "symlink", fingerprint: target, size: stats.size, ...common };
  }
  if (!stats.isFile()) return { kind: "other", fingerprint: none, size: stats.size, ...common };
  const fingerprint = new Uint8Array(
    createHash("sha256")
      .update(await readFile(path))
      .digest(),
  );
  return { kind: "file", fingerprint, size: stats.size, ...common };
}
