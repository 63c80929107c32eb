// Archives both ways: what is packed here can be unpacked here and by the host's tar, and nothing hostile leads out.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmod, lstat, mkdir, mkdtemp, readdir, readFile, readlink, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ArchiveError, encodeHeader, type Header } from "./header.ts";
import { packedStream } from "./pack.ts";
import { unpacked } from "./unpack.ts";

let scratch: string;
let from: string;
let to: string;
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), "fluxvm-tar-"));
  [from, to] = [join(scratch, "from"), join(scratch, "to")];
  await Promise.all([mkdir(from), mkdir(to)]);
});
afterEach(() => rm(scratch, { recursive: true, force: true }));

const LONG = `${"d".repeat(120)}/${"f".repeat(200)}`;

async function tree(): Promise<void> {
  await mkdir(join(from, "a/empty"), { recursive: true });
  await mkdir(join(from, "d".repeat(120)));
  await writeFile(join(from, "a/one"), "one\n", { mode: 0o640 });
  await writeFile(join(from, "a/none"), "");
  await writeFile(join(from, "a/large"), Buffer.alloc(700_001, "x"));
  await writeFile(join(from, LONG), "long");
  await writeFile(Buffer.concat([Buffer.from(`${from}/`), Buffer.from([0xff, 0x41])]), "bytes");
  await symlink("a/one", join(from, "link"));
  await symlink("x".repeat(300), join(from, "long link"));
  await chmod(join(from, "a/empty"), 0o555);
}

async function expectTree(): Promise<void> {
  expect(await readFile(join(to, "a/one"), "utf8")).toBe("one\n");
  expect((await lstat(join(to, "a/one"))).mode & 0o7777).toBe(0o640);
  expect((await lstat(join(to, "a/none"))).size).toBe(0);
  expect((await readFile(join(to, "a/large"))).equals(Buffer.alloc(700_001, "x"))).toBe(true);
  expect(await readFile(join(to, LONG), "utf8")).toBe("long");
  expect(await readlink(join(to, "link"))).toBe("a/one");
  expect(await readlink(join(to, "long link"))).toBe("x".repeat(300));
  expect((await lstat(join(to, "a/empty"))).mode & 0o7777).toBe(0o555);
  expect((await readdir(to, { encoding: "buffer" })).map((name) => name.toString("latin1"))).toContain("\xffA");
}

const streamOf = (pieces: readonly Uint8Array[]) => new Blob(pieces as Uint8Array<ArrayBuffer>[]).stream();

test("what is packed is unpacked", async () => {
  await tree();
  expect(await unpacked(packedStream(from), to)).toBe(10);
  await expectTree();
});

test("what is packed the host's tar unpacks, and the other way round", async () => {
  await tree();
  const archive = join(scratch, "archive");
  await Bun.write(archive, new Response(packedStream(from)));
  expect(await Bun.spawn(["tar", "-xf", archive, "-C", to]).exited).toBe(0);
  await expectTree();
  await rm(to, { recursive: true });
  await mkdir(to);
  expect(await Bun.spawn(["tar", "--format=gnu", "-cf", archive, "-C", from, "."]).exited).toBe(0);
  await unpacked(Bun.file(archive).stream(), to);
  await expectTree();
});

describe("an archive", () => {
  const header = (fields: Partial<Omit<Header, "name" | "target">> & { name: string; target?: string }) =>
    encodeHeader({
      ...{ type: "0", size: 0, mode: 0o644, modifiedAtUnixSecs: 0 },
      ...fields,
      name: Buffer.from(fields.name),
      target: Buffer.from(fields.target ?? ""),
    });
  const end = new Uint8Array(1024);
  const content = (text: string) => Buffer.concat([Buffer.from(text), Buffer.alloc(512 - text.length)]);

  test.each(["../out", "/out", "a/../../out", "a/..", "\0"])("with the name %p is refused", async (name) => {
    await expect(unpacked(streamOf([header({ name }), end]), to)).rejects.toThrow(ArchiveError);
    expect(await readdir(scratch)).toEqual(["from", "to"]);
  });

  test("writes nothing through a link of its own", async () => {
    const pieces = [
      header({ name: "l", type: "2", target: from }),
      header({ name: "l/f", size: 1 }),
      content("x"),
      header({ name: "k", type: "2", target: join(from, "g") }),
      header({ name: "k", size: 1 }),
      content("y"),
      end,
    ];
    // The links come last, where the directory and the file of the same names already are.
    await expect(unpacked(streamOf(pieces), to)).rejects.toThrow();
    expect(await readdir(from)).toEqual([]);
    expect(await readFile(join(to, "l/f"), "utf8")).toBe("x");
  });

  test("writes nothing through a link that is there", async () => {
    await symlink(from, join(to, "l"));
    await symlink(join(from, "g"), join(to, "k"));
    const pieces = [header({ name: "k", size: 1 }), content("y"), header({ name: "l/f", size: 1 }), content("x"), end];
    await expect(unpacked(streamOf(pieces), to)).rejects.toThrow("l is no directory");
    expect(await readdir(from)).toEqual([]);
    expect((await lstat(join(to, "k"))).isFile()).toBe(true);
  });

  test("that is cut off, damaged or of a kind that nobody sends is no archive", async () => {
    for (const pieces of [
      [header({ name: "f", size: 600 }), content("x")],
      [header({ name: "f" })],
      [Buffer.concat([header({ name: "f" }).subarray(0, 511), Buffer.from([1])]), end],
      [header({ name: "f", type: "3" }), end],
      [header({ name: "f", type: "1", target: "g" }), end],
      [header({ name: "", type: "0" }), end],
      [header({ name: "x", type: "L", size: 1 << 20 }), end],
    ]) {
      await expect(unpacked(streamOf(pieces), to)).rejects.toThrow(ArchiveError);
    }
  });

  test("gives no set-id bits", async () => {
    await unpacked(streamOf([header({ name: "f", mode: 0o6755 }), end]), to);
    expect((await lstat(join(to, "f"))).mode & 0o7777).toBe(0o755);
  });
});
