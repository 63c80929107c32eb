// An empty qcow2 disk over an image: every sandbox's own disk begins as one. It is written here, since starting a tool for
// four small pieces takes longer than all else that a launch does before its machine. `docs/interop/qcow2` of QEMU has
// the layout; version 3, clusters of 64 KiB, 16-bit reference counts.
import { constants } from "node:fs";
import { open } from "node:fs/promises";
import { AgentError } from "../../src/errors/agent-error.ts";

const MAGIC = 0x51_46_49_fb;
const VERSION = 3;
const HEADER_BYTES = 104;
const CLUSTER_BITS = 16;
const CLUSTER_BYTES = 1 << CLUSTER_BITS;
const REFCOUNT_ORDER = 4;
const ENTRY_BYTES = 8;
/** What one entry of the first-level table leads to: a cluster full of entries, each of a cluster. */
const BYTES_PER_ENTRY = (CLUSTER_BYTES / ENTRY_BYTES) * CLUSTER_BYTES;
const EXTENSION_BACKING_FORMAT = 0xe2_79_2a_ca;
const BACKING_NAME_MAX_BYTES = 1023;
/** Header, table of reference counts and their first block; the first-level table follows. */
const TABLE_CLUSTER = 1;
const BLOCK_CLUSTER = 2;
const LEVEL1_CLUSTER = 3;

export interface Overlay {
  /** Size of the disk that the guest sees, in bytes; a multiple of 512. */
  readonly bytes: number;
  /** For whoever looks at the file: machines are told what lies below when they are launched. */
  readonly image: string;
  readonly imageFormat: "raw" | "qcow2";
}

/**
 * Writes a new file, 0600, of `owner`; null: the agent's own user. Rejects with `EEXIST` where there is anything, and `BAD_REQUEST`; when it
 * is cut off, what is there is no disk, and whoever made the sandbox removes its volume.
 */
export async function writeOverlay(path: string, overlay: Overlay, owner: number | null): Promise<void> {
  const flags = constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL | constants.O_NOFOLLOW;
  const file = await open(path, flags, 0o600);
  try {
    const entries = Math.ceil(overlay.bytes / BYTES_PER_ENTRY);
    const clusters = LEVEL1_CLUSTER + Math.ceil((entries * ENTRY_BYTES) / CLUSTER_BYTES);
    await file.truncate(clusters * CLUSTER_BYTES);
    await file.write(refcountTable(), 0, null, TABLE_CLUSTER * CLUSTER_BYTES);
    await file.write(refcounts(clusters), 0, null, BLOCK_CLUSTER * CLUSTER_BYTES);
    await file.write(header(overlay, entries), 0, null, 0);
    if (owner !== null) await file.chown(owner, owner);
  } finally {
    await file.close();
  }
}

function header({ bytes, image, imageFormat }: Overlay, entries: number): Buffer {
  const name = Buffer.from(image);
  if (name.length > BACKING_NAME_MAX_BYTES) throw new AgentError("BAD_REQUEST", "image: its path is too long");
  const format = Buffer.from(imageFormat);
  const extension = Buffer.alloc(8 + Math.ceil(format.length / 8) * 8);
  extension.writeUInt32BE(EXTENSION_BACKING_FORMAT, 0);
  extension.writeUInt32BE(format.length, 4);
  format.copy(extension, 8);
  // An extension of no kind and no length ends them.
  const nameOffset = HEADER_BYTES + extension.length + 8;
  const out = Buffer.alloc(nameOffset + name.length);
  out.writeUInt32BE(MAGIC, 0);
  out.writeUInt32BE(VERSION, 4);
  out.writeBigUInt64BE(BigInt(nameOffset), 8);
  out.writeUInt32BE(name.length, 16);
  out.writeUInt32BE(CLUSTER_BITS, 20);
  out.writeBigUInt64BE(BigInt(bytes), 24);
  out.writeUInt32BE(entries, 36);
  out.writeBigUInt64BE(BigInt(LEVEL1_CLUSTER * CLUSTER_BYTES), 40);
  out.writeBigUInt64BE(BigInt(TABLE_CLUSTER * CLUSTER_BYTES), 48);
  out.writeUInt32BE(1, 56); // clusters of the table of reference counts
  out.writeUInt32BE(REFCOUNT_ORDER, 96);
  out.writeUInt32BE(HEADER_BYTES, 100);
  extension.copy(out, HEADER_BYTES);
  name.copy(out, nameOffset);
  return out;
}

function refcountTable(): Buffer {
  const table = Buffer.alloc(ENTRY_BYTES);
  table.writeBigUInt64BE(BigInt(BLOCK_CLUSTER * CLUSTER_BYTES));
  return table;
}

/** Every cluster so far is used once. One block counts more than a first-level table ever has. */
function refcounts(clusters: number): Buffer {
  const block = Buffer.alloc(2 * clusters);
  for (let cluster = 0; cluster < clusters; cluster += 1) block.writeUInt16BE(1, 2 * cluster);
  return block;
}
