// The config disk of a virtual machine: a small read-only disk that carries what must not be in a shared image, on a
// command line or in a log. The guest agent reads it (`wire/src/config_disk.rs` has the layout).
import { randomBytes } from "node:crypto";
import { constants } from "node:fs";
import { open, rm } from "node:fs/promises";
import type { JsonObject } from "../../src/contracts/json.ts";

const MAGIC = "FLUXVMCD";
const VERSION = 1;
const HEADER_BYTES = 16;
const BLOCK_BYTES = 4096;
const SEED_BYTES = 64;

export interface GuestIdentity {
  /** Authenticates the host at the guest agent. */
  readonly token: string;
  readonly hostname: string;
  /** Folders of the host that it mounts. */
  readonly sharedFolders: readonly JsonObject[];
}

/** Writes the disk, 0600, with a fresh seed of random numbers. An earlier one is replaced, never written over. */
export async function writeConfigDisk(path: string, identity: GuestIdentity): Promise<void> {
  const { token, hostname, sharedFolders } = identity;
  const seed = randomBytes(SEED_BYTES).toString("base64");
  const content = { token, hostname, entropy_base64: seed, shared_folders: sharedFolders };
  const payload = Buffer.from(JSON.stringify(content));
  const disk = Buffer.alloc(Math.ceil((HEADER_BYTES + payload.length) / BLOCK_BYTES) * BLOCK_BYTES);
  disk.write(MAGIC, 0, "latin1");
  disk.writeUInt32BE(VERSION, MAGIC.length);
  disk.writeUInt32BE(payload.length, MAGIC.length + 4);
  payload.copy(disk, HEADER_BYTES);
  await rm(path, { force: true });
  const file = await open(path, constants.O_WRONLY | constants.O_CREAT | constants.O_EXCL, 0o600);
  try {
    await file.writeFile(disk);
  } finally {
    await file.close();
  }
}
