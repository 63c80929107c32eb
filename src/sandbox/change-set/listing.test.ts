import { describe, expect, test } from "bun:test";
import { mkdtemp, readdir, readFile, rm, stat, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ManifestEntry } from "../../contracts/channel.ts";
import { type ListingEntry, entryLine, parseEntry } from "./listing-format.ts";
import { ListingReader } from "./listing-reader.ts";
import { ListingWriter } from "./listing-writer.ts";

const file = (fields: Partial<ManifestEntry> = {}): ManifestEntry => ({
  kind: "file",
  fingerprint: new Uint8Array(32).fill(7),
  size: 3,
  mode: 0o644,
  uid: 1,
  gid: 2,
  ...fields,
});

async function inDirectory(work: (directory: string) => Promise<void>): Promise<void> {
  const directory = await mkdtemp(join(tmpdir(), "listing-"));
  try {
    await work(directory);
  } finally {
    await rm(directory, { recursive: true });
  }
}

async function write(
  target: string,
  entries: readonly ListingEntry[],
  paths: readonly Uint8Array[] = [Buffer.from("/")],
) {
  const writer = await ListingWriter.create(target, paths);
  for (const { path, entry } of entries) {
    writer.entry(path, entry);
    await writer.drained();
  }
  await writer.finish({ mode: "sha256", takenAtUnixMs: 1_800_000_000_123, digest: new Uint8Array(32), files: 2 });
  await writer.discard();
}

async function readAll(target: string): Promise<ListingEntry[]> {
  const reader = await ListingReader.open(target);
  const entries: ListingEntry[] = [];
  try {
    for (;;) {
      if (reader.needsFill) await reader.fill();
      const { current } = reader;
      if (current === null) return entries;
      entries.push(current);
      reader.advance();
    }
  } finally {
    await reader.close();
  }
}

/** Bun's `rejects` turns the event loop by itself and can miss an immediate of a reader; a plain await does not. */
async function failureOf(work: Promise<unknown>): Promise<unknown> {
  return await work.then(
    () => null,
    (error: unknown) => error,
  );
}

const plain = (entries: readonly ListingEntry[]) =>
  entries.map(({ path, entry }) => [
    Buffer.from(path).toString("hex"),
    { ...entry, fingerprint: Buffer.from(entry.fingerprint).toString("hex") },
  ]);

const ODD_NAMES = [
  "/a",
  "/a b",
  '/quo"te',
  "/back\\slash",
  "/new\nline",
  "/tab\t",
  "/naïve ☃",
  "/-dash",
  "/],",
  "/]}",
  `/${"x".repeat(255)}`,
]
  .map((name) => Buffer.from(name))
  .sort(Buffer.compare);

describe("entries", () => {
  test("keep every byte of every name", () => {
    const names = [...ODD_NAMES, Buffer.from([0x2f, 0xff, 0xfe]), Buffer.from([0x2f, 0xef, 0xbb, 0xbf, 0x61])];
    for (const path of names) {
      for (const entry of [
        file(),
        file({ kind: "symlink", fingerprint: path }),
        file({ fingerprint: new Uint8Array() }),
      ]) {
        const line = entryLine(path, entry);
        expect(line).not.toContain("\n");
        expect(plain([parseEntry(line)])).toEqual(plain([{ path, entry }]));
      }
    }
  });

  test.each(["", "{}", "[]", '["/a",9,"",0,0,0,0]', '["/a",0,"",-1,0,0,0]', '["/a",0,"",0,0,0]', '[1,0,"",0,0,0,0]'])(
    "%p is refused",
    (line) => {
      expect(() => parseEntry(line)).toThrow();
    },
  );
});

describe("listing files", () => {
  test("come back as they were written, and are one JSON document", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      const paths = [Buffer.from("/a"), Buffer.from([0x2f, 0xff])];
      const entries = ODD_NAMES.map((path) => ({ path, entry: file() }));
      await write(target, entries, paths);
      const document = JSON.parse(await readFile(target, "utf8"));
      expect(document).toMatchObject({ version: 1, mode: "sha256", files: 2, entry_count: entries.length });
      expect(document.entries).toHaveLength(entries.length);
      const reader = await ListingReader.open(target);
      expect(reader.head).toMatchObject({ mode: "sha256", takenAtUnixMs: 1_800_000_000_123, files: 2 });
      expect(reader.head.paths.map((path) => Buffer.from(path).toString("hex"))).toEqual(
        paths.map((path) => path.toString("hex")),
      );
      await reader.close();
      expect(plain(await readAll(target))).toEqual(plain(entries));
      expect((await stat(target)).mode & 0o777).toBe(0o600);
      expect(await readdir(directory)).toEqual(["b.json"]);
    }));

  test("an empty one is whole too", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      await write(target, []);
      expect(await readAll(target)).toEqual([]);
    }));

  test("many pieces", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      const entries = Array.from({ length: 20_000 }, (_, index) => ({
        path: Buffer.from(`/☃/${String(index).padStart(6, "0")}`),
        entry: file({ size: index }),
      }));
      await write(target, entries);
      expect(plain(await readAll(target))).toEqual(plain(entries));
    }));

  test("one that is cut anywhere is corrupt, never shorter", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      const entries = Array.from({ length: 5 }, (_, index) => ({ path: Buffer.from(`/${index}`), entry: file() }));
      await write(target, entries);
      const whole = await readFile(target);
      for (let length = whole.length - 2; length >= 0; length -= 7) {
        await writeFile(target, whole);
        await truncate(target, length);
        expect(await failureOf(readAll(target))).toMatchObject({ code: "BASELINE_CORRUPT" });
      }
    }));

  test("one with a line missing or with nonsense in it is corrupt", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      await write(
        target,
        ODD_NAMES.map((path) => ({ path, entry: file() })),
      );
      const lines = (await readFile(target, "utf8")).split("\n");
      for (const damaged of [lines.toSpliced(2, 1), lines.toSpliced(2, 1, "nonsense"), ["{}", ...lines.slice(1)]]) {
        await writeFile(target, damaged.join("\n"));
        expect(await failureOf(readAll(target))).toMatchObject({ code: "BASELINE_CORRUPT" });
      }
    }));

  test("none at all is missing", async () => {
    await expect(ListingReader.open("/nonexistent/b.json")).rejects.toMatchObject({ code: "BASELINE_MISSING" });
  });

  test("a discarded one leaves the earlier one", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      await write(target, []);
      const before = await readFile(target, "utf8");
      const writer = await ListingWriter.create(target, [Buffer.from("/")]);
      writer.entry(Buffer.from("/a"), file());
      await writer.discard();
      expect(await readFile(target, "utf8")).toBe(before);
      expect(await readdir(directory)).toEqual(["b.json"]);
    }));

  test("reading many entries gives the event loop a turn after every piece", () =>
    inDirectory(async (directory) => {
      const target = join(directory, "b.json");
      const count = 50_000;
      await write(
        target,
        Array.from({ length: count }, (_, index) => ({
          path: Buffer.from(`/some/directory/name/file-${String(index).padStart(6, "0")}`),
          entry: file(),
        })),
      );
      let turns = 0;
      const timer = setInterval(() => {
        turns += 1;
      }, 0);
      const immediate = (): void => {
        turns += 1;
        if (!done) setImmediate(immediate);
      };
      let done = false;
      setImmediate(immediate);
      expect(await readAll(target)).toHaveLength(count);
      done = true;
      clearInterval(timer);
      expect(turns).toBeGreaterThan(count / 2_000);
    }));
});
