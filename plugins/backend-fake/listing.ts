// The listing of a fake sandbox's volume, in the form that the guest agent gives.
import { constants, type Stats } from "node:fs";
import { lstat, open, readdir, readlink } from "node:fs/promises";
import type { ManifestEntry, ManifestRequest, ManifestSink, ManifestSummary } from "../../src/contracts/channel.ts";
import { compareBytes, ListingDigest } from "../../src/contracts/listing.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { child, componentsOf, type VolumeFiles } from "./volume-files.ts";

const ENTRIES_A_DRAIN = 256;
const READ_CHUNK_BYTES = 64 * 1024;
const NOTHING = new Uint8Array();

interface Found {
  readonly path: Buffer;
  readonly entry: ManifestEntry;
}

/** Lists the paths in order into `sink`. Errors: `FILE_NOT_FOUND`, `NOT_A_DIRECTORY`, `WALK_FAILED`, `LISTING_TOO_LARGE`. */
export async function listVolume(
  files: VolumeFiles,
  request: ManifestRequest,
  sink: ManifestSink,
): Promise<ManifestSummary> {
  const found: Found[] = [];
  const budget = { files: request.filesMax };
  for (const start of request.paths) {
    const host = await files.resolve(start);
    const stats = await lstat(host).catch(() => {
      throw new AgentError("FILE_NOT_FOUND");
    });
    if (!stats.isDirectory()) throw new AgentError(stats.isSymbolicLink() ? "FILE_IS_SYMLINK" : "NOT_A_DIRECTORY");
    const shown = componentsOf(start).reduce(child, Buffer.alloc(0));
    await walk(host, shown, stats, found, budget).catch(walkFailed);
  }
  found.sort((left, right) => compareBytes(left.path, right.path));
  return emit(found, request, sink);
}

async function walk(
  host: Buffer,
  shown: Buffer,
  stats: Stats,
  found: Found[],
  budget: { files: number },
): Promise<void> {
  if (stats.isFile() && --budget.files < 0) throw new AgentError("LISTING_TOO_LARGE");
  found.push({ path: shown.length === 0 ? Buffer.from("/") : shown, entry: await entryOf(host, stats) });
  if (!stats.isDirectory()) return;
  for (const name of await readdir(host, { encoding: "buffer" })) {
    const inside = child(host, name);
    await walk(inside, child(shown, name), await lstat(inside), found, budget);
  }
}

async function entryOf(host: Buffer, stats: Stats): Promise<ManifestEntry> {
  const common = { mode: stats.mode & 0o7777, uid: stats.uid, gid: stats.gid };
  if (stats.isFile()) return { kind: "file", fingerprint: await hash(host), size: stats.size, ...common };
  if (stats.isDirectory()) return { kind: "directory", fingerprint: NOTHING, size: 0, ...common };
  if (!stats.isSymbolicLink()) return { kind: "other", fingerprint: NOTHING, size: 0, ...common };
  const target = await readlink(host, { encoding: "buffer" });
  return { kind: "symlink", fingerprint: target, size: target.length, ...common };
}

async function hash(host: Buffer): Promise<Uint8Array> {
  const hasher = new Bun.CryptoHasher("sha256");
  const file = await open(host, constants.O_RDONLY | constants.O_NOFOLLOW);
  try {
    const buffer = new Uint8Array(READ_CHUNK_BYTES);
    for (let read = -1; read !== 0;) {
      read = (await file.read(buffer, 0, buffer.length)).bytesRead;
      hasher.update(buffer.subarray(0, read));
    }
  } finally {
    await file.close();
  }
  return new Uint8Array(hasher.digest().buffer);
}

function walkFailed(error: unknown): never {
  if (error instanceof AgentError) throw error;
  throw new AgentError("WALK_FAILED", undefined, { cause: error });
}

async function emit(found: readonly Found[], request: ManifestRequest, sink: ManifestSink): Promise<ManifestSummary> {
  const digest = new ListingDigest();
  let files = 0;
  let previous: Buffer | null = null;
  for (const [index, { path, entry }] of found.entries()) {
    if (previous !== null && path.equals(previous)) continue;
    previous = path;
    digest.add(path, entry);
    if (digest.bytes > request.listingMaxBytes) throw new AgentError("LISTING_TOO_LARGE");
    if (entry.kind === "file") files += 1;
    sink.entry(path, entry);
    if (index % ENTRIES_A_DRAIN === 0) await sink.drained();
  }
  await sink.drained();
  return { digest: digest.digest(), files, delta: false, unchanged: 0 };
}
