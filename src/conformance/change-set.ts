// The conformance suite of change-set methods: a listing says exactly what is in the guest, or nothing at all. The
// cases make trees on the host and list them through a guest whose root holds them under the same path.
import { chmod, mkdir, rm, stat, symlink, utimes, writeFile } from "node:fs/promises";
import type { ChangeSetMethod } from "../contracts/change-set.ts";
import type { GuestChannel, ManifestEntry, ManifestRequest } from "../contracts/channel.ts";
import { compareBytes } from "../contracts/listing.ts";
import { check, equal, equalBytes, rejectsWith, textOf } from "./assert.ts";
import { type ConformanceCase, needs } from "./case.ts";
import { collectBy, type Listing, type ListedEntry } from "./collect.ts";
import type { Scratch } from "./scratch.ts";
import { entryAt, join, makeHostileTree, type TreeEntry, walkTree } from "./tree.ts";

export interface ChangeSetContext {
  readonly method: ChangeSetMethod;
  /** A guest that sees the host's files under their own paths. */
  readonly channel: GuestChannel;
  /** The user that the guest reads as; to root no file is closed. */
  readonly guestUid: number;
  readonly scratch: Scratch;
}

const bytes = (text: string): Uint8Array => Buffer.from(text, "latin1");

function request(...paths: (string | Uint8Array)[]): ManifestRequest {
  return {
    paths: paths.map((path) => Buffer.from(path as string)),
    filesMax: 10_000,
    listingMaxBytes: 8 * 1024 * 1024,
  };
}

/** A directory that the guest may read, made for one case. */
async function tree(context: ChangeSetContext): Promise<string> {
  return context.scratch.directory(`tree${context.scratch.unique()}`, 0o755);
}

/** What an independent walk says about `root`, under its own path. */
async function expected(root: string): Promise<TreeEntry[]> {
  const inside = await walkTree(root);
  const top = { path: new Uint8Array(Buffer.from(root)), entry: await entryAt(Buffer.from(root)) };
  return [
    top,
    ...inside.map(({ path, entry }) => ({ path: new Uint8Array(Buffer.concat([Buffer.from(root), path])), entry })),
  ];
}

/** What the guest may see of an entry: a file that it cannot read has no fingerprint. */
function seenBy(uid: number, entry: ManifestEntry): ManifestEntry {
  const readable = uid === 0 || (entry.mode & (entry.uid === uid ? 0o400 : 0o004)) !== 0;
  return entry.kind !== "file" || readable ? entry : { ...entry, fingerprint: bytes("") };
}

/** Compares entry by entry. A method of another mode than `sha256` is held to everything but files' fingerprints. */
function sameListing(
  { guestUid }: ChangeSetContext,
  listing: Listing<{ mode: string } & Listing["summary"]>,
  trees: readonly TreeEntry[],
): void {
  const wanted = trees.toSorted((left, right) => compareBytes(left.path, right.path));
  const hashed = listing.summary.mode === "sha256";
  equal(
    listing.entries.map(({ path }) => textOf(path)),
    wanted.map(({ path }) => textOf(path)),
    "paths",
  );
  for (const [index, { path, entry }] of wanted.entries()) {
    const { now } = listing.entries[index] as ListedEntry;
    const seen = seenBy(guestUid, entry);
    const found = !hashed && entry.kind === "file" ? { ...now, fingerprint: seen.fingerprint } : now;
    equal(plain(found), plain(seen), `the entry of ${textOf(path)}`);
  }
  equal(listing.summary.files, wanted.filter(({ entry }) => entry.kind === "file").length, "files");
  equal(listing.summary.delta, false, "delta without a base");
  equalBytes(listing.summary.digest, listing.digest, "digest of the entries");
}

/** Fingerprints as hexadecimal, for messages that can be read. */
function plain(entry: ManifestEntry) {
  return { ...entry, fingerprint: Buffer.from(entry.fingerprint).toString("hex") };
}

const list = (context: ChangeSetContext, what: ManifestRequest) => collectBy(context.method, context.channel, what);

export const changeSetCases: readonly ConformanceCase<ChangeSetContext>[] = [
  {
    name: "list: everything in a hostile tree, byte for byte",
    async run(context) {
      check(context.method.supports(context.channel), "the method does not support this guest");
      const root = await tree(context);
      await makeHostileTree(root);
      sameListing(context, await list(context, request(root)), await expected(root));
    },
  },
  {
    name: "list: an empty directory",
    async run(context) {
      const root = await tree(context);
      sameListing(context, await list(context, request(root)), await expected(root));
    },
  },
  {
    name: "list: several paths, unsorted, repeated and nested, each entry once",
    async run(context) {
      const root = await tree(context);
      for (const name of ["b", "a", "a/inner", "c", "ab"]) await mkdir(join(root, name));
      for (const name of ["b/1", "a/2", "a/inner/3", "c/4", "ab/5"]) await writeFile(join(root, name), name);
      const wanted = ["a", "ab", "b"].map((name) => expected(`${root}/${name}`));
      const listing = await list(
        context,
        request(`${root}/b`, `${root}/a/inner`, `${root}/a`, `${root}/ab`, `${root}/b`),
      );
      sameListing(context, listing, (await Promise.all(wanted)).flat());
    },
  },
  {
    name: "list: paths with any bytes",
    async run(context) {
      const root = await tree(context);
      const names = [bytes("sp ace"), bytes("new\nline\n"), bytes("\xff\xfe"), bytes("'\"$(id)`%s\\"), bytes("-n")];
      for (const name of names) {
        const path = join(root, name);
        await mkdir(path);
        await writeFile(join(path, "f"), name);
        const listing = await list(context, request(path));
        const file = join(path, "f");
        const wanted = [path, file].map(async (at) => ({ path: new Uint8Array(at), entry: await entryAt(at) }));
        sameListing(context, listing, await Promise.all(wanted));
      }
    },
  },
  {
    name: "list: links are listed and never followed",
    async run(context) {
      const root = await tree(context);
      const outside = await tree(context);
      await writeFile(join(outside, "secret"), "secret");
      await symlink(outside, join(root, "out"));
      await symlink("out", join(root, "chain"));
      const listing = await list(context, request(root));
      sameListing(context, listing, await expected(root));
      check(!listing.entries.some(({ path }) => textOf(path).includes("secret")), "a file behind a link is listed");
    },
  },
  {
    name: "list: sees edits of content, mode and kind, also with size and time as before",
    async run(context) {
      const root = await tree(context);
      for (const name of ["same-size", "mode", "gone", "becomes-link"]) await writeFile(join(root, name), "before");
      const before = await list(context, request(root));
      const { atime, mtime } = await stat(join(root, "same-size"));
      await writeFile(join(root, "same-size"), "aFterX");
      await utimes(join(root, "same-size"), atime, mtime);
      await chmod(join(root, "mode"), 0o600);
      await rm(join(root, "gone"));
      await rm(join(root, "becomes-link"));
      await symlink("mode", join(root, "becomes-link"));
      await writeFile(join(root, "new"), "new");
      const after = await list(context, request(root));
      sameListing(context, after, await expected(root));
      if (after.summary.mode === "sha256")
        check(!Bun.deepEquals(before.digest, after.digest), "the digest did not move");
    },
  },
  {
    name: "errors: a missing path, a file as a path",
    async run(context) {
      const root = await tree(context);
      await writeFile(join(root, "f"), "x");
      await rejectsWith(list(context, request(`${root}/none`)), ["FILE_NOT_FOUND"], "a missing path");
      const other = await tree(context);
      const among = list(context, request(root, `${other}/none`));
      await rejectsWith(among, ["FILE_NOT_FOUND"], "a missing path among others");
      await rejectsWith(list(context, request(`${root}/f`)), ["NOT_A_DIRECTORY"], "a file as a path");
    },
  },
  {
    name: "limits: the number of files and the size of the listing",
    async run(context) {
      const root = await tree(context);
      for (let index = 0; index < 20; index += 1) await writeFile(join(root, `file${index}`), "x");
      const exact = await list(context, { ...request(root), filesMax: 20 });
      equal(exact.summary.files, 20, "files at the bound");
      await rejectsWith(list(context, { ...request(root), filesMax: 19 }), ["LISTING_TOO_LARGE"], "a file too many");
      const short = { ...request(root), listingMaxBytes: 300 };
      await rejectsWith(list(context, short), ["LISTING_TOO_LARGE"], "a listing that is too long");
    },
  },
  {
    name: "errors: a directory that cannot be read fails the listing; a file that cannot be read is listed",
    async run(context) {
      needs(context.guestUid !== 0, "a guest without root's rights");
      const root = await tree(context);
      await writeFile(join(root, "open"), "open");
      await writeFile(join(root, "closed"), "closed");
      await chmod(join(root, "closed"), 0o000);
      const listing = await list(context, request(root));
      const closed = listing.entries.find(({ path }) => textOf(path).endsWith("/closed"));
      check(closed !== undefined, "the unreadable file is not listed");
      equal(closed.now.size, 6, "its size");
      if (listing.summary.mode === "sha256") equalBytes(closed.now.fingerprint, bytes(""), "its fingerprint");
      await mkdir(join(root, "dir"), { mode: 0o000 });
      await rejectsWith(list(context, request(root)), ["WALK_FAILED"], "a tree with an unreadable directory");
    },
  },
];
