// The conformance suite of storage plugins: volumes, their bound, clones, reopening, and release of hostile content.
import { execFile } from "node:child_process";
import { chmod, lstat, mkdir, open, readFile, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { promisify } from "node:util";
import type { Storage, Volume, VolumeRequest } from "../contracts/storage.ts";
import { check, equal, equalBytes, failureOf } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { ConformanceJournal, type InjectedFailure } from "./journal.ts";
import type { Scratch } from "./scratch.ts";
import { makeHostileTree, walkTree } from "./tree.ts";

const MIB = 1024 * 1024;
const CAP_BYTES = 32 * MIB;
const WRITE_CHUNK_BYTES = 1 * MIB;
/** A bound that holds may still count metadata and delayed allocation. */
const CAP_SLACK = 1.25;
const CONCURRENT = 8;
/** A watcher that is slower than this lets a writer fill the disk. */
const OVERSHOOT_MAX_MS = 15_000;

const run = promisify(execFile);

export interface StorageContext {
  readonly storage: Storage;
  readonly capabilities: ReadonlySet<string>;
  readonly scratch: Scratch;
  /** A new storage on the same host, as after a restart of the agent. */
  restart(): Promise<Storage>;
}

interface Shelf {
  readonly journal: ConformanceJournal;
  request(name: string): VolumeRequest;
  create(name: string): Promise<Volume>;
}

/** A journal of its own and names of its own; everything is released afterwards. */
async function withShelf(
  context: StorageContext,
  use: (shelf: Shelf) => Promise<void>,
  failure?: InjectedFailure,
): Promise<void> {
  const { storage, scratch } = context;
  const journal = new ConformanceJournal(storage.releases, { failure });
  const prefix = `conf-${scratch.unique()}-${process.pid}`;
  const isRoot = process.geteuid?.() === 0;
  const uid = isRoot ? scratch.lease("uid") : (process.geteuid?.() ?? 0);
  const gid = isRoot ? uid : (process.getegid?.() ?? 0);
  const request = (name: string): VolumeRequest => ({ name: `${prefix}${name}`, capBytes: CAP_BYTES, uid, gid });
  try {
    await use({ journal, request, create: (name) => storage.createVolume(request(name), journal) });
  } finally {
    await journal.releaseAll();
  }
}

const exists = (path: string): Promise<boolean> =>
  lstat(path).then(
    () => true,
    () => false,
  );

export const storageCases: readonly ConformanceCase<StorageContext>[] = [
  {
    name: "volume: is an empty private directory of its owner, and is gone after release",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const volume = await create("a");
        equal(volume.name, request("a").name, "name");
        equal(volume.capBytes, CAP_BYTES, "capBytes");
        equal(volume.hardCap, context.capabilities.has("hard_cap"), "hardCap against the capability hard_cap");
        const stats = await lstat(volume.path);
        check(stats.isDirectory(), "the path is not a directory");
        equal(
          [stats.mode & 0o7777, stats.uid, stats.gid],
          [0o700, request("a").uid, request("a").gid],
          "mode and owner",
        );
        equal((await walkTree(volume.path)).length, 0, "entries in a new volume");
        await journal.releaseAll();
        check(!(await exists(volume.path)), "the directory is still there after release");
        await journal.releaseAgain();
      }),
  },
  {
    name: "volume: a name is taken once, and free again after release",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const first = await create("a");
        await writeFile(join(first.path, "mine"), "mine");
        const rival = new ConformanceJournal(context.storage.releases);
        await failureOf(context.storage.createVolume(request("a"), rival), "a second volume of the same name");
        await rival.releaseAll();
        equal(await readFile(join(first.path, "mine"), "utf8"), "mine", "the first volume after the second's unwind");
        await journal.releaseAll();
        equal((await walkTree((await create("a")).path)).length, 0, "entries in a new volume of that name");
      }),
  },
  {
    name: "volume: names that are no names are refused",
    run: (context) =>
      withShelf(context, async ({ request, journal }) => {
        for (const name of ["", ".", "..", "a/b", "../x", "a\0b", "x".repeat(129), "a b"]) {
          const attempt = context.storage.createVolume({ ...request("a"), name }, journal);
          await failureOf(attempt, `a volume called ${JSON.stringify(name)}`);
        }
      }),
  },
  {
    name: "volume: many are made at once, each its own",
    run: (context) =>
      withShelf(context, async ({ create }) => {
        const volumes = await Promise.all(Array.from({ length: CONCURRENT }, (_, index) => create(`v${index}`)));
        equal(new Set(volumes.map((volume) => volume.path)).size, CONCURRENT, "different paths");
        await Promise.all(volumes.map((volume) => writeFile(join(volume.path, "who"), volume.name)));
        for (const volume of volumes) equal(await readFile(join(volume.path, "who"), "utf8"), volume.name, "content");
      }),
  },
  {
    name: "open: finds a volume after a restart, with its bound; what is not there is null",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const volume = await create("a");
        await writeFile(join(volume.path, "kept"), "kept");
        const restarted = await context.restart();
        try {
          equal(await restarted.openVolume(volume.name), volume, "the volume");
          equal(await restarted.openVolume(request("none").name), null, "a volume that never was");
          await journal.releaseAll();
          equal(await restarted.openVolume(volume.name), null, "a volume that was released");
        } finally {
          await restarted.close();
        }
      }),
  },
  {
    name: "usage: grows with content",
    run: (context) =>
      withShelf(context, async ({ create }) => {
        const volume = await create("a");
        const before = (await context.storage.usage(volume)).bytes;
        await writeFile(join(volume.path, "big"), crypto.getRandomValues(new Uint8Array(65_536)));
        for (let index = 0; index < 64; index += 1) {
          await writeFile(join(volume.path, `big${index}`), crypto.getRandomValues(new Uint8Array(65_536)));
        }
        await run("sync", ["-f", volume.path]);
        const grown = (await context.storage.usage(volume)).bytes - before;
        check(grown >= 3 * MIB && grown <= 8 * MIB, `4 MiB of files count as ${grown} bytes`);
      }),
  },
  {
    name: "cap: a writer is stopped at the bound, and the neighbours go on",
    requires: ["hard_cap"],
    run: (context) =>
      withShelf(context, async ({ create }) => {
        const [full, neighbour] = [await create("full"), await create("neighbour")];
        const written = await fill(join(full.path, "flood"), CAP_BYTES * 2);
        check(written < CAP_BYTES * CAP_SLACK, `${written} bytes went into a volume of ${CAP_BYTES}`);
        check(written > CAP_BYTES / 2, `only ${written} bytes went into a volume of ${CAP_BYTES}`);
        equal(await fill(join(neighbour.path, "some"), 4 * MIB), 4 * MIB, "bytes into the neighbour");
      }),
  },
  {
    name: "cap: where it does not hold, who goes beyond it is reported until he is back below",
    async run(context) {
      const watch = context.storage.watchOvershoot;
      needs(watch !== undefined, "watchOvershoot");
      await withShelf(context, async ({ create }) => {
        const [over, neighbour] = [await create("over"), await create("neighbour")];
        const found: string[] = [];
        const stop = watch((overshoot) => found.push(overshoot.volume.name));
        try {
          await fill(join(neighbour.path, "some"), 1 * MIB);
          await fill(join(over.path, "flood"), CAP_BYTES + 8 * MIB);
          for (let waited = 0; found.length === 0 && waited < OVERSHOOT_MAX_MS; waited += 100) await Bun.sleep(100);
          check(found.includes(over.name), `nothing was reported within ${OVERSHOOT_MAX_MS} ms`);
          check(!found.includes(neighbour.name), "a volume below its bound was reported");
        } finally {
          stop();
        }
      });
    },
  },
  {
    name: "clone: is the source at that instant, and neither sees the other's changes",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const source = await create("source");
        await makeHostileTree(source.path);
        const before = await walkTree(source.path);
        const clone = await context.storage.cloneVolume(source, request("source.clone"), journal);
        equal(clone.name, request("source.clone").name, "name");
        const copied = (entries: typeof before) => entries.filter(({ entry }) => entry.kind !== "other");
        equal(copied(await walkTree(clone.path)), copied(before), "the clone's content (specials may be left out)");
        const stats = await lstat(clone.path);
        equal([stats.mode & 0o7777, stats.uid], [0o700, request("source").uid], "mode and owner of the clone");

        await writeFile(join(clone.path, "plain"), "changed in the clone");
        await writeFile(join(source.path, "later"), "made in the source");
        equal(await readFile(join(source.path, "plain"), "utf8"), "plain", "the source's file");
        check(!(await exists(join(clone.path, "later"))), "the clone sees a file that was made later");
        await journal.release(volumeKind(journal, clone), clone.name);
        equal(await readFile(join(source.path, "plain"), "utf8"), "plain", "the source after the clone is gone");
      }),
  },
  {
    name: "clone: outlives its source",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const source = await create("source");
        await writeFile(join(source.path, "f"), "content");
        const clone = await context.storage.cloneVolume(source, request("source.clone"), journal);
        await journal.release(volumeKind(journal, source), source.name);
        equal(await readFile(join(clone.path, "f"), "utf8"), "content", "the clone's file");
      }),
  },
  {
    name: "clone: links in the source are copied as links",
    run: (context) =>
      withShelf(context, async ({ create, request, journal }) => {
        const outside = await context.scratch.directory(`outside${context.scratch.unique()}`);
        await writeFile(join(outside, "secret"), "secret");
        const source = await create("source");
        await symlink(outside, join(source.path, "out"));
        const clone = await context.storage.cloneVolume(source, request("source.clone"), journal);
        check((await lstat(join(clone.path, "out"))).isSymbolicLink(), "the link was followed");
        await journal.releaseAll();
        equal(await readFile(join(outside, "secret"), "utf8"), "secret", "what the link points to, after release");
      }),
  },
  {
    name: "release: removes links, FIFOs, odd names, deep trees and closed directories",
    run: (context) =>
      withShelf(context, async ({ create, journal }) => {
        const volume = await create("a");
        await makeHostileTree(volume.path);
        await mkdir(join(volume.path, "closed/inside"), { recursive: true });
        await writeFile(join(volume.path, "closed/inside/f"), "x");
        await chmod(join(volume.path, "closed/inside"), 0o000);
        await chmod(join(volume.path, "closed"), 0o000);
        await journal.releaseAll();
        check(!(await exists(volume.path)), "the volume is still there");
      }),
  },
  {
    name: "release: acts by name and leaves the other volumes alone",
    run: (context) =>
      withShelf(context, async ({ create, journal }) => {
        const [first, second] = [await create("a"), await create("ab")];
        await writeFile(join(second.path, "f"), "content");
        await journal.release(volumeKind(journal, first), first.name);
        equal(await readFile(join(second.path, "f"), "utf8"), "content", "the other volume");
      }),
  },
  {
    name: "create: a failure at any acquisition leaves only rows, which release cleanly and free the name",
    async run(context) {
      let count = 0;
      await withShelf(context, async ({ create, journal }) => {
        await create("a");
        count = journal.acquisitions;
      });
      check(count > 0, "creating a volume journals nothing");
      for (let acquisition = 1; acquisition <= count; acquisition += 1) {
        for (const when of ["before", "after"] as const) {
          const failing = async ({ create, request, journal }: Shelf): Promise<void> => {
            await failureOf(create("a"), `creating with a failure ${when} acquisition ${acquisition}`);
            await journal.releaseAll();
            await journal.releaseAgain();
            equal(await context.storage.openVolume(request("a").name), null, "the volume after release");
            const retry = new ConformanceJournal(context.storage.releases);
            const volume = await context.storage.createVolume(request("a"), retry);
            equalBytes(Buffer.from(volume.name), Buffer.from(request("a").name), "a volume of the same name");
            await retry.releaseAll();
          };
          await withShelf(context, failing, { acquisition, when });
        }
      }
    },
  },
];

function volumeKind(journal: ConformanceJournal, volume: Volume): string {
  const row = journal.held().find(({ name }) => name === volume.name);
  check(row !== undefined, `no journal row is named ${volume.name}: the row of a volume carries the volume's name`);
  return row.kind;
}

/** Writes until `size` bytes are on disk or the file system refuses; answers the bytes that went in. */
async function fill(path: string, size: number): Promise<number> {
  const file = await open(path, "w", 0o600);
  let written = 0;
  try {
    while (written < size) {
      const chunk = crypto.getRandomValues(new Uint8Array(65_536));
      for (let part = 0; part < WRITE_CHUNK_BYTES && written < size; part += chunk.length) {
        written += (await file.write(chunk)).bytesWritten;
      }
      await file.sync();
    }
  } catch (error) {
    if (!["ENOSPC", "EDQUOT"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  } finally {
    await file.close();
  }
  return written;
}
