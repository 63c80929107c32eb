// File transfer with clients of ssh2 on a real directory: any offset, any order, links, bounds, and failures that are told.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir, readFile, stat, symlink, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Attributes, Client, SFTPWrapper } from "ssh2";
import { limits } from "../../config/limits.ts";
import type { FileEntry } from "../../contracts/files.ts";
import { ended, exec, sftp as openSftp, SshTestStation, until } from "../testing/station.ts";
import { longName, putAttributes } from "./attributes.ts";
import { Fields, PacketBuilder } from "./packet.ts";
import { absolutePath, joinPath, splitPath } from "./path.ts";

const MIB = 1024 * 1024;

let station: SshTestStation;
let client: Client;
let sftp: SFTPWrapper;
beforeEach(async () => {
  station = await SshTestStation.start();
  client = await station.connect();
  sftp = await openSftp(client);
});
afterEach(() => station.stop());

const at = (name: string): string => join(station.dir, name);

/** A call with a callback as a promise; failures are the text and the code of the status. */
function call<T>(act: (done: (error: any, value?: T) => void) => unknown): Promise<T> {
  return new Promise((resolve, reject) => {
    act((error, value) => (error == null ? resolve(value as T) : reject(error)));
  });
}

const status = (work: Promise<unknown>): Promise<number> =>
  work.then(
    () => 0,
    ({ code }: { code: number }) => code,
  );

const open = (name: string, flags: string | number, mode?: number) =>
  call<Buffer>((done) =>
    mode === undefined ? sftp.open(name, flags as any, done) : sftp.open(name, flags as any, mode, done),
  );
const close = (handle: Buffer) => call((done) => sftp.close(handle, done));
const write = (handle: Buffer, bytes: Buffer, offset: number) =>
  call((done) => sftp.write(handle, bytes, 0, bytes.length, offset, done));

function read(handle: Buffer, offset: number, length: number): Promise<Buffer> {
  const buffer = Buffer.alloc(length);
  return new Promise((resolve, reject) => {
    sftp.read(handle, buffer, 0, length, offset, (error, count) =>
      error == null ? resolve(buffer.subarray(0, count)) : reject(error),
    );
  });
}

function noise(length: number): Buffer {
  const bytes = Buffer.alloc(length);
  for (let from = 0; from < length; from += 65_536) crypto.getRandomValues(bytes.subarray(from, from + 65_536));
  return bytes;
}

describe("reading", () => {
  test("in order is one stream, whose end is the file's", async () => {
    const bytes = noise(3 * MIB + 123);
    await writeFile(at("f"), bytes);
    const got = await call<Buffer>((done) => sftp.readFile("/f", done as any));
    expect(got.equals(bytes)).toBe(true);
    const handle = await open("f", "r");
    const pieces = await Promise.all(Array.from({ length: 64 }, (_, index) => read(handle, index * 32_768, 32_768)));
    expect(Buffer.concat(pieces).equals(bytes.subarray(0, 64 * 32_768))).toBe(true);
    expect(station.files.reads).toBeLessThan(5);
    expect((await read(handle, bytes.length, 10)).length).toBe(0);
    expect((await read(handle, bytes.length - 5, 100)).equals(bytes.subarray(-5))).toBe(true);
    await close(handle);
    await until(() => station.files.transfers === 0, "a stream is left open");
  });

  test("at random is right, and asks for little", async () => {
    const bytes = noise(8 * MIB);
    await writeFile(at("f"), bytes);
    const handle = await open("f", "r");
    let seed = 7;
    for (let round = 0; round < 200; round++) {
      seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
      const offset = seed % bytes.length;
      const length = 1 + (seed % 50_000);
      expect((await read(handle, offset, length)).equals(bytes.subarray(offset, offset + length))).toBe(true);
    }
    await close(handle);
  });

  test("sees what is added, and misses what is cut off", async () => {
    await writeFile(at("f"), "abc");
    const handle = await open("f", "r");
    expect((await read(handle, 0, 10)).toString()).toBe("abc");
    expect((await read(handle, 3, 10)).length).toBe(0);
    await writeFile(at("f"), "abcdef");
    expect((await read(handle, 3, 10)).toString()).toBe("def");
    await writeFile(at("f"), "");
    expect((await read(handle, 0, 10)).length).toBe(0);
  });
});

describe("writing", () => {
  test("in order, in reverse and over one another ends where it should", async () => {
    const bytes = noise(MIB);
    const handle = await open("f", "w");
    const size = 32_768;
    for (let from = bytes.length - size; from >= 0; from -= size) {
      await write(handle, bytes.subarray(from, from + size), from);
    }
    await write(handle, bytes.subarray(5, 5 + 1000), 5);
    expect((await call<{ size: number }>((done) => sftp.fstat(handle, done as any))).size).toBe(bytes.length);
    await close(handle);
    expect((await readFile(at("f"))).equals(bytes)).toBe(true);
    await until(() => station.files.transfers === 0, "a stream is left open");
  });

  test("of many pieces that are not waited for", async () => {
    const bytes = noise(16 * MIB);
    const handle = await open("f", "w");
    const size = 65_536;
    await Promise.all(
      Array.from({ length: bytes.length / size }, (_, index) =>
        write(handle, bytes.subarray(index * size, (index + 1) * size), index * size),
      ),
    );
    await close(handle);
    expect((await readFile(at("f"))).equals(bytes)).toBe(true);
  }, 20_000);

  test("and reading through one handle see each other", async () => {
    const handle = await open("f", "w+");
    await write(handle, Buffer.from("0123456789"), 0);
    expect((await read(handle, 3, 4)).toString()).toBe("3456");
    await write(handle, Buffer.from("xy"), 4);
    expect((await read(handle, 0, 100)).toString()).toBe("0123xy6789");
    await close(handle);
  });

  test("to the end goes to the end, whatever offset is said", async () => {
    await writeFile(at("log"), "one\n");
    const handle = await open("log", "a");
    await write(handle, Buffer.from("two\n"), 0);
    await write(handle, Buffer.from("three\n"), 0);
    await close(handle);
    expect(await readFile(at("log"), "utf8")).toBe("one\ntwo\nthree\n");
  });

  test("what was written is there for whoever looks at the path", async () => {
    const handle = await open("f", "w");
    await write(handle, Buffer.alloc(1000), 0);
    expect((await call<{ size: number }>((done) => sftp.stat("f", done as any))).size).toBe(1000);
    await call((done) => sftp.rename("f", "g", done));
    expect((await stat(at("g"))).size).toBe(1000);
  });

  test("that fails is told, at the latest when the file is closed", async () => {
    station.files.fullAfterBytes = 100_000;
    const handle = await open("f", "w");
    const results = await Promise.all(
      Array.from({ length: 8 }, (_, index) => status(write(handle, Buffer.alloc(32_768), index * 32_768))),
    );
    expect([...results, await status(close(handle))]).toContain(4);
    station.files.fullAfterBytes = 10;
    const small = await open("g", "w");
    await write(small, Buffer.alloc(11), 0);
    expect(await status(close(small))).toBe(4);
  });

  test("empties, makes or keeps a file as the flags say", async () => {
    await writeFile(at("f"), "12345");
    await close(await open("f", 0x02));
    expect(await readFile(at("f"), "utf8")).toBe("12345");
    expect(await status(open("f", "wx"))).toBe(4);
    expect(await status(open("none", 0x02))).toBe(2);
    await close(await open("f", "w"));
    expect(await readFile(at("f"), "utf8")).toBe("");
    await close(await open("fresh", "w", 0o666));
    await close(await open("own", "wx", 0o600));
    expect([(await stat(at("fresh"))).mode & 0o777, (await stat(at("own"))).mode & 0o777]).toEqual([0o644, 0o600]);
    const reader = await open("f", "r");
    expect(await status(write(reader, Buffer.from("x"), 0))).toBe(3);
    const writer = await open("f", 0x02);
    expect(await status(read(writer, 0, 1))).toBe(3);
  });
});

describe("names", () => {
  test("are listed with what `ls -l` shows", async () => {
    for (let index = 0; index < 300; index++) await writeFile(at(`n${index}`), "x".repeat(index % 7));
    const names: { filename: string; longname: string; attrs: Attributes }[] = [];
    const handle = await call<Buffer>((done) => sftp.opendir("/", done as any));
    for (;;) {
      const some = await call<typeof names>((done) => sftp.readdir(handle, done as any)).catch(() => null);
      if (some === null) break;
      names.push(...some);
    }
    await close(handle);
    expect(names.filter(({ filename }) => filename.startsWith("n")).length).toBe(300);
    const one = names.find(({ filename }) => filename === "n6")!;
    expect(one.longname).toMatch(/^-rw-r--r-- +1 \d+ +\d+ +6 \w{3} +\d+ \d\d:\d\d n6$/);
    expect(one.attrs.size).toBe(6);
  });

  test("are made, moved and removed, each by its own request", async () => {
    await call((done) => sftp.mkdir("d", done));
    expect(await status(call((done) => sftp.mkdir("d", done)))).toBe(4);
    expect(await status(call((done) => sftp.mkdir("a/b", done)))).toBe(2);
    await writeFile(at("d/f"), "f");
    expect(await status(call((done) => sftp.rmdir("d", done)))).toBe(4);
    expect(await status(call((done) => sftp.rmdir("d/f", done)))).toBe(4);
    expect(await status(call((done) => sftp.unlink("d", done)))).toBe(4);
    await writeFile(at("g"), "g");
    expect(await status(call((done) => sftp.rename("g", "d/f", done)))).toBe(4);
    await call((done) => sftp.ext_openssh_rename("g", "d/f", done));
    expect(await readFile(at("d/f"), "utf8")).toBe("g");
    await call((done) => sftp.ext_openssh_hardlink("d/f", "h", done));
    expect((await stat(at("h"))).nlink).toBe(2);
    await call((done) => sftp.unlink("d/f", done));
    await call((done) => sftp.rmdir("d", done));
    expect(await status(call((done) => sftp.stat("d", done as any)))).toBe(2);
    expect(await status(call((done) => sftp.unlink("none", done)))).toBe(2);
  });

  test("that are links are followed inside, and told as what they are", async () => {
    await mkdir(at("real/deep"), { recursive: true });
    await writeFile(at("real/deep/f"), "content");
    await symlink("real", at("link"));
    await symlink("link/deep/f", at("to-file"));
    await symlink("/etc/passwd", at("out"));
    expect(await call<string>((done) => sftp.realpath("link/deep/../deep/f", done as any))).toBe("/real/deep/f");
    expect((await call<Buffer>((done) => sftp.readFile("to-file", done as any))).toString()).toBe("content");
    await call((done) => sftp.writeFile("link/deep/new", "new", done as any));
    expect(await readFile(at("real/deep/new"), "utf8")).toBe("new");
    await call((done) => sftp.writeFile("to-file", "other", done as any));
    expect(await readFile(at("real/deep/f"), "utf8")).toBe("other");
    expect(await status(open("to-file", "wx"))).toBe(4);
    await call((done) => sftp.chmod("to-file", 0o600, done));
    expect((await stat(at("real/deep/f"))).mode & 0o777).toBe(0o600);
    await call((done) => sftp.rename("link/deep/new", "link/deep/newer", done));
    await call((done) => sftp.unlink("link/deep/newer", done));
    expect(await call<string>((done) => sftp.readlink("to-file", done as any))).toBe("link/deep/f");
    expect(await status(call((done) => sftp.readlink("real", done as any)))).toBe(4);
    const followed = await call<any>((done) => sftp.stat("link", done as any));
    const itself = await call<any>((done) => sftp.lstat("link", done as any));
    expect([followed.isDirectory(), itself.isSymbolicLink()]).toEqual([true, true]);
    for (const name of ["out", "link/../../../etc/passwd"]) {
      expect(await status(open(name, "r"))).toBe(2);
    }
    expect(await status(open("out", "w"))).toBe(2);
    await call((done) => sftp.unlink("link", done));
    expect((await stat(at("real"))).isDirectory()).toBe(true);
  });

  test("and what belongs to them can be set, but for their owner", async () => {
    await writeFile(at("f"), "12345");
    await call((done) => sftp.utimes("f", 1_000, 2_000, done));
    await call((done) => sftp.chmod("f", 0o604, done));
    const handle = await open("f", "r+");
    await call((done) => sftp.fsetstat(handle, { size: 2 }, done));
    await close(handle);
    const { mode, size } = await stat(at("f"));
    expect([mode & 0o777, size]).toEqual([0o604, 2]);
    expect(await status(call((done) => sftp.chown("f", 12_345, 12_345, done)))).toBe(3);
    const { uid, gid } = await stat(at("f"));
    await call((done) => sftp.chown("f", uid, gid, done));
  });
});

describe("a client", () => {
  test("has a bounded number of files and streams", async () => {
    const bytes = noise(200_000);
    await writeFile(at("f"), bytes);
    const handles = await Promise.all(Array.from({ length: limits.sftpFilesMax }, () => open("f", "r")));
    expect(await status(open("f", "r"))).toBe(4);
    expect(station.files.transfersMax).toBeLessThanOrEqual(limits.sftpTransfersMax + 1);
    const some = await Promise.all(handles.map((handle, index) => read(handle, index * 10, 10)));
    expect(some.every((piece, index) => piece.equals(bytes.subarray(index * 10, index * 10 + 10)))).toBe(true);
    await Promise.all(handles.map(close));
    expect(await status(close(handles[0]!))).toBe(4);
    await close(await open("f", "r"));
    await until(() => station.files.transfers === 0, "a stream is left open");
  });

  test("that leaves in the middle leaves nothing behind", async () => {
    await writeFile(at("f"), noise(8 * MIB));
    const handles = await Promise.all([open("f", "r"), open("f", "r"), open("g", "w")]);
    await read(handles[0]!, 0, 100);
    await write(handles[2]!, Buffer.alloc(100), 0);
    client.destroy();
    await until(() => station.files.transfers === 0, "a stream is left open");
  });

  test("that speaks nonsense loses its transfer and not the connection", async () => {
    for (const bytes of [
      Buffer.from([0, 0, 0, 0]),
      Buffer.from([255, 255, 255, 255, 1]),
      Buffer.from([0, 0, 0, 5, 9, 0, 0, 0, 3]),
      Buffer.from([0, 0, 0, 5, 1, 0, 0, 0, 2]),
    ]) {
      const channel = await new Promise<any>((resolve, reject) => {
        client.subsys("sftp", (error, opened) => (error === undefined ? resolve(opened) : reject(error)));
      });
      channel.resume();
      channel.write(bytes);
      await new Promise((resolve) => channel.once("close", resolve));
    }
    await exec(client, "still here");
  });

  test("that reads no answers is held up", async () => {
    await writeFile(at("f"), noise(MIB));
    const socket = (client as unknown as { _sock: { pause(): void } })._sock;
    const handle = await open("f", "r");
    socket.pause();
    const before = process.memoryUsage().rss;
    for (let index = 0; index < 4000; index++) {
      sftp.read(handle, Buffer.alloc(1), 0, 1, 0, () => undefined);
      sftp.readFile("f", () => undefined);
    }
    await Bun.sleep(300);
    expect(process.memoryUsage().rss - before).toBeLessThan(128 * MIB);
    client.destroy();
    await ended(client).catch(() => undefined);
  });
});

describe("fields and answers", () => {
  test("a packet that ends too early is no packet", () => {
    const packet = new PacketBuilder(3, 7).string("name").uint64(5).finish();
    const fields = () => new Fields(packet.subarray(4));
    const whole = fields();
    expect([whole.byte(), whole.uint32(), whole.text(), whole.uint64()]).toEqual([3, 7, "name", 5]);
    for (let length = 0; length < packet.length - 4; length++) {
      const cut = new Fields(packet.subarray(4, 4 + length));
      expect(() => [cut.byte(), cut.uint32(), cut.text(), cut.uint64()]).toThrow("too early");
    }
    const beyond = new Fields(Buffer.alloc(8, 255));
    expect(() => beyond.uint64()).toThrow("beyond any file");
  });

  test("paths begin at the root and never leave it", () => {
    const absolute = (path: string): string =>
      Buffer.from(absolutePath(Buffer.from(path, "latin1"))).toString("latin1");
    expect(["", ".", "/", "a", "./a//b/", "/a/../../b", "../../..", "a/b/..", "\xff/\xfe"].map(absolute)).toEqual([
      ..."///".split(""),
      "/a",
      "/a/b",
      "/b",
      "/",
      "/a",
      "/\xff/\xfe",
    ]);
    expect(splitPath(Buffer.from("/"))).toBeNull();
    expect(Buffer.from(joinPath(Buffer.from("/"), Buffer.from("a"))).toString()).toBe("/a");
  });

  test("a long name tells kind, rights and time", () => {
    const entry: FileEntry = {
      path: Buffer.from("/x"),
      kind: "directory",
      size: 0,
      mode: 0o7750,
      uid: 1,
      gid: 2,
      modifiedAtUnixMs: Date.UTC(2001, 8, 9, 1, 46, 40),
      target: new Uint8Array(0),
    };
    const show = (more: Partial<FileEntry>, now: number): string =>
      Buffer.from(longName({ ...entry, ...more }, Buffer.from("x"), now)).toString();
    expect(show({}, Date.UTC(2026, 0, 1))).toBe("drwsr-s--T   1 1        2               0 Sep  9  2001 x");
    expect(show({ kind: "symlink", mode: 0o777 }, entry.modifiedAtUnixMs)).toBe(
      "lrwxrwxrwx   1 1        2               0 Sep  9 01:46 x",
    );
    const packet = new PacketBuilder(105, 1);
    putAttributes(packet, { ...entry, size: 2 ** 40, modifiedAtUnixMs: 2 ** 50 });
    expect(packet.finish().length).toBe(4 + 1 + 4 + 4 + 8 + 4 + 4 + 4 + 8);
  });
});
