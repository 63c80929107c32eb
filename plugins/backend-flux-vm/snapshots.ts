// Snapshots of a machine as files in its volume: for each tag a description, which gets its name last, and beside it memory,
// state and disk. The machine has them only while they are open: somebody who got out of a guest may take snapshots away, but
// can neither read nor change one, nor put another in its place.
import { statfs } from "node:fs/promises";
import type { Snapshot } from "../../src/contracts/backend.ts";
import { AgentError, isHostFull } from "../../src/errors/agent-error.ts";
import { type OpenFiles, placeOf, removeEmptyDirectory, SnapshotDirectory } from "./snapshot-files.ts";

/** What a snapshot's files are called beside its description. */
const MEMORY = ".mem";
const STATE = ".vmstate";
const DISK = ".rootfs";
/** The description, until all is there. */
const UNFINISHED = ".new";
/** No tag has it, so that no file of one snapshot is the description of another. */
const END_OF_TAG = "@";
const BLOCK_BYTES = 512;
/** With less than that free a snapshot found no room; it is written in larger pieces. */
const ROOM_MIN_BYTES = 1024 * 1024;

const nameOf = (tag: string, end = ""): string => `${tag}${END_OF_TAG}${end}`;
/** In the order in which the hypervisor takes them. */
const namesOf = (tag: string, description = ""): string[] =>
  [description, MEMORY, STATE, DISK].map((end) => nameOf(tag, end));

/** Where the snapshot lies; its other files have this name and more. */
export const snapshotPath = (volumeDir: string, tag: string): string => placeOf(volumeDir, nameOf(tag));

/** By time. */
export async function listSnapshots(volumeDir: string): Promise<Snapshot[]> {
  await using directory = await SnapshotDirectory.open(volumeDir);
  if (directory === null) return [];
  const names = (await directory.names()).filter((name) => name.endsWith(END_OF_TAG));
  const tags = names.map((name) => name.slice(0, -END_OF_TAG.length));
  const found = await Promise.all(tags.map((tag) => describe(directory, tag)));
  return found.filter((snapshot) => snapshot !== null).sort((left, right) => left.takenAtUnixMs - right.takenAtUnixMs);
}

/** Rejects with `SNAPSHOT_NOT_FOUND`. */
export async function requireSnapshot(volumeDir: string, tag: string): Promise<void> {
  await (await openSnapshot(volumeDir, tag))[Symbol.asyncDispose]();
}

/** Opens one that can only be read. Rejects with `SNAPSHOT_NOT_FOUND`, also when not all of it is the agent's. */
export async function openSnapshot(volumeDir: string, tag: string): Promise<OpenFiles> {
  await using directory = await SnapshotDirectory.open(volumeDir);
  const files = await directory?.read(namesOf(tag));
  if (files == null) throw new AgentError("SNAPSHOT_NOT_FOUND");
  return files;
}

/**
 * Has `write` fill empty files with a snapshot. Rejects with `SNAPSHOT_EXISTS`, with `HOST_FULL`, or as `write` does; nothing
 * of it is left then.
 */
export async function saveSnapshot(
  volumeDir: string,
  tag: string,
  write: (files: OpenFiles) => Promise<unknown>,
): Promise<Snapshot> {
  await using directory = await SnapshotDirectory.make(volumeDir);
  if ((await directory.look(nameOf(tag))) !== null) throw new AgentError("SNAPSHOT_EXISTS");
  // What a save left that was cut off.
  await clear(directory, tag);
  try {
    const files = await directory.create(namesOf(tag, UNFINISHED));
    await write(files).finally(() => files[Symbol.asyncDispose]());
    await directory.rename(nameOf(tag, UNFINISHED), nameOf(tag));
  } catch (error) {
    const isFull = isHostFull(error) || (await isWithoutRoom(volumeDir));
    await clear(directory, tag);
    throw isFull ? new AgentError("HOST_FULL", undefined, { cause: error }) : error;
  }
  const saved = await describe(directory, tag);
  if (saved === null) throw new AgentError("MONITOR_ERROR", "the hypervisor took a snapshot that is not there");
  return saved;
}

/** Removes it, and what is left of one that was not finished. Rejects with `SNAPSHOT_NOT_FOUND` when there was none. */
export async function removeSnapshot(volumeDir: string, tag: string): Promise<void> {
  await using directory = await SnapshotDirectory.open(volumeDir);
  const isThere = directory !== null && (await describe(directory, tag)) !== null;
  if (directory !== null) await clear(directory, tag);
  await removeEmptyDirectory(volumeDir);
  if (!isThere) throw new AgentError("SNAPSHOT_NOT_FOUND");
}

/** Looked at here: what the machine says of it need not be so. */
async function isWithoutRoom(path: string): Promise<boolean> {
  const { bavail, bsize } = await statfs(path);
  return bavail * bsize < ROOM_MIN_BYTES;
}

/** The description first: what has none is no snapshot. */
async function clear(directory: SnapshotDirectory, tag: string): Promise<void> {
  await directory.remove([nameOf(tag), ...namesOf(tag, UNFINISHED)]);
}

async function describe(directory: SnapshotDirectory, tag: string): Promise<Snapshot | null> {
  const [description, memory, state] = await Promise.all(
    ["", MEMORY, STATE].map((end) => directory.look(nameOf(tag, end))),
  );
  if (description == null) return null;
  const bytes = ((memory?.blocks ?? 0) + (state?.blocks ?? 0)) * BLOCK_BYTES;
  return { tag, takenAtUnixMs: Math.floor(description.mtimeMs), bytes };
}
