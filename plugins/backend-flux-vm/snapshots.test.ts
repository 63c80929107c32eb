// Snapshots by their files: which are there, their order, what is left of those that were not finished, and that what
// somebody else put there is none.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { writeSync } from "node:fs";
import {
  chmod,
  chown,
  link,
  mkdir,
  mkdtemp,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  symlink,
  utimes,
} from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import type { OpenFiles } from "./snapshot-files.ts";
import {
  listSnapshots,
  openSnapshot,
  removeSnapshot,
  requireSnapshot,
  saveSnapshot,
  snapshotPath,
} from "./snapshots.ts";

const isRoot = process.getuid?.() === 0;
const OTHER_UID = 65_534;
const ENDS = ["", ".mem", ".vmstate", ".rootfs"];

let volume: string;
let directory: string;
beforeEach(async () => {
  volume = await mkdtemp(join(tmpdir(), "snapshots-"));
  directory = dirname(snapshotPath(volume, "tag"));
});
afterEach(() => rm(volume, { recursive: true }));

/** Fills each file as the hypervisor does, which has nothing but what is open. */
async function fill({ descriptors }: OpenFiles): Promise<void> {
  for (const [index, fd] of descriptors.entries()) writeSync(fd, `file ${index}`.padEnd(8192));
}

const file = (tag: string, end: string): string => `${snapshotPath(volume, tag)}${end}`;
const tags = async (): Promise<string[]> => (await listSnapshots(volume)).map(({ tag }) => tag);
const notFound = { code: "SNAPSHOT_NOT_FOUND" };

test("are listed by time, with what memory and state take", async () => {
  expect(await listSnapshots(volume)).toEqual([]);
  for (const [tag, atSeconds] of [
    ["later", 2_000_000_000],
    ["earlier.mem", 1_000_000_000],
    ["earlier", 1_500_000_000],
  ] as const) {
    expect(await saveSnapshot(volume, tag, fill)).toMatchObject({ tag });
    await utimes(file(tag, ""), atSeconds, atSeconds);
  }
  const listed = await listSnapshots(volume);
  expect(listed.map(({ tag, takenAtUnixMs }) => [tag, takenAtUnixMs])).toEqual([
    ["earlier.mem", 1_000_000_000_000],
    ["earlier", 1_500_000_000_000],
    ["later", 2_000_000_000_000],
  ]);
  expect(listed[2]?.bytes).toBeGreaterThanOrEqual(16_384);
});

test("are written through files that are open, and have their name when all is there", async () => {
  await saveSnapshot(volume, "tag", async (files) => {
    await fill(files);
    expect(await listSnapshots(volume)).toEqual([]);
  });
  const contents = await Promise.all(ENDS.map((end) => readFile(file("tag", end), "utf8")));
  expect(contents.map((content) => content.trim())).toEqual(["file 0", "file 1", "file 2", "file 3"]);
  expect(await readdir(directory)).toHaveLength(4);
  expect((await stat(directory)).mode & 0o777).toBe(0o700);
  await expect(saveSnapshot(volume, "tag", fill)).rejects.toMatchObject({ code: "SNAPSHOT_EXISTS" });
  await using files = await openSnapshot(volume, "tag");
  await expect(fill(files)).rejects.toThrow();
});

test("are removed whole, and no other's file with them, and the last one with their directory", async () => {
  await saveSnapshot(volume, "a", fill);
  await saveSnapshot(volume, "a.mem", fill);
  await removeSnapshot(volume, "a");
  expect(await tags()).toEqual(["a.mem"]);
  expect(await readdir(directory)).toHaveLength(4);
  await expect(removeSnapshot(volume, "a")).rejects.toMatchObject(notFound);
  await expect(requireSnapshot(volume, "a")).rejects.toMatchObject(notFound);
  await removeSnapshot(volume, "a.mem");
  expect(await readdir(volume)).toEqual([]);
});

test("that failed leave nothing, and say that the host is full where it is", async () => {
  const failing = (error: Error) => saveSnapshot(volume, "tag", () => Promise.reject(error));
  await expect(failing(new Error("no"))).rejects.toThrow("no");
  const full = Object.assign(new Error("full"), { code: "ENOSPC" });
  await expect(failing(full)).rejects.toMatchObject({ code: "HOST_FULL" });
  expect(await readdir(directory)).toEqual([]);
});

test("that were cut off are none, and make room", async () => {
  await saveSnapshot(volume, "tag", fill);
  await rename(file("tag", ""), file("tag", ".new"));
  expect(await tags()).toEqual([]);
  await expect(openSnapshot(volume, "tag")).rejects.toMatchObject(notFound);
  await saveSnapshot(volume, "tag", fill);
  expect(await tags()).toEqual(["tag"]);
  expect(await readdir(directory)).toHaveLength(4);
});

test("with a file that is missing, linked or somebody else's are none", async () => {
  const spoils: readonly ((path: string) => Promise<unknown>)[] = [
    (path) => rm(path),
    async (path) => {
      await rm(path);
      await symlink("/dev/null", path);
    },
    (path) => link(path, join(volume, "second-name")),
    ...(isRoot ? [(path: string) => chown(path, OTHER_UID, OTHER_UID)] : []),
  ];
  for (const end of ENDS) {
    for (const spoil of spoils) {
      await saveSnapshot(volume, "tag", fill);
      await requireSnapshot(volume, "tag");
      await spoil(file("tag", end));
      await expect(openSnapshot(volume, "tag")).rejects.toMatchObject(notFound);
      await expect(requireSnapshot(volume, "tag")).rejects.toMatchObject(notFound);
      if (end === "") expect(await tags()).toEqual([]);
      for (const left of [directory, join(volume, "second-name")]) await rm(left, { recursive: true, force: true });
    }
  }
});

test("in a directory that is a link, open to others or somebody else's are none, and nothing is written there", async () => {
  const places: readonly (() => Promise<unknown>)[] = [
    async () => {
      await rename(directory, join(volume, "mine"));
      await symlink("mine", directory);
    },
    () => chmod(directory, 0o701),
    ...(isRoot ? [() => chown(directory, OTHER_UID, OTHER_UID)] : []),
  ];
  for (const change of places) {
    await saveSnapshot(volume, "tag", fill);
    await change();
    expect(await tags()).toEqual([]);
    await expect(openSnapshot(volume, "tag")).rejects.toMatchObject(notFound);
    await expect(removeSnapshot(volume, "tag")).rejects.toMatchObject(notFound);
    await expect(saveSnapshot(volume, "other", fill)).rejects.toMatchObject({ code: "MONITOR_ERROR" });
    await rm(volume, { recursive: true });
    await mkdir(volume);
  }
});
