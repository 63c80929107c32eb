// Consoles of sandboxes: what is read back of a log that its guest may tamper with, following it, and one client at a time.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { appendFile, link, mkdtemp, rename, rm, symlink, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { ByteSource } from "../../contracts/files.ts";
import { admin, World } from "../testing/world.ts";
import { LogFollower, readTail } from "./log-file.ts";

const MAX_BYTES = 256 * 1024;
let root: string;
let path: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "console-"));
  path = join(root, "console.log");
});

afterEach(() => rm(root, { recursive: true, force: true }));

const text = (bytes: Uint8Array | null): string | null => (bytes === null ? null : Buffer.from(bytes).toString());
const tail = async (lines: number, maxBytes = MAX_BYTES) => text((await readTail(path, lines, maxBytes)).content);

describe("the tail of a log", () => {
  test.each([
    ["a\nb\nc\n", 2, "b\nc\n"],
    ["a\nb\nc", 2, "b\nc"],
    ["a\nb\nc\n", 3, "a\nb\nc\n"],
    ["a\nb\nc\n", 9, "a\nb\nc\n"],
    ["a\n\n\n", 2, "\n\n"],
    ["\n", 1, "\n"],
    ["x", 1, "x"],
    ["a\nb\n", 0, ""],
    ["", 5, ""],
  ])("of %j, the last %i lines are %j", async (content, lines, expected) => {
    await writeFile(path, content);
    expect(await tail(lines)).toBe(expected);
  });

  test("is empty where there is no log", async () => {
    expect(await readTail(path, 5, MAX_BYTES)).toEqual({ content: new Uint8Array(0), end: 0 });
  });

  test("goes back as far as it must and no further than it may", async () => {
    const line = `${"x".repeat(99)}\n`;
    await writeFile(path, line.repeat(5000));
    expect((await tail(2000))?.length).toBe(200_000);
    expect((await tail(5000, 1000))?.length).toBe(1000);
  });

  test("of a log that was begun again has the lines before", async () => {
    await writeFile(`${path}.1`, "a\nb\nc\n");
    await writeFile(path, "d\n");
    expect(await tail(3)).toBe("b\nc\nd\n");
    expect(await tail(1)).toBe("d\n");
    expect(await tail(9, 4)).toBe("c\nd\n");
  });

  test("follows no link, opens no pipe and reads no file with another name", async () => {
    const secret = join(root, "secret");
    await writeFile(secret, "secret");
    await symlink(secret, path);
    await expect(tail(1)).rejects.toMatchObject({ code: "FILE_NOT_REGULAR" });
    await rm(path);
    await link(secret, path);
    await expect(tail(1)).rejects.toMatchObject({ code: "FILE_NOT_REGULAR" });
    await rm(path);
    expect(Bun.spawnSync(["mkfifo", path]).exitCode).toBe(0);
    await expect(tail(1)).rejects.toMatchObject({ code: "FILE_NOT_REGULAR" });
    await rm(path);
    await symlink(secret, `${path}.1`);
    await expect(tail(1)).rejects.toMatchObject({ code: "FILE_NOT_REGULAR" });
  });
});

describe("a log that is followed", () => {
  async function follow(options: { isOver?: () => boolean; pieceBytes?: number } = {}) {
    const tailed = await readTail(path, 1, MAX_BYTES);
    const { isOver = () => false, pieceBytes = 1024 } = options;
    return new LogFollower({ path, tail: tailed, pieceBytes, pause: () => Bun.sleep(1), isOver });
  }

  test("gives its tail, then what comes, also after it was begun again or comes into being late", async () => {
    const log = await follow();
    const first = log.read();
    await writeFile(path, "one\n");
    expect(text(await first)).toBe("one\n");
    await appendFile(path, "two\n");
    expect(text(await log.read())).toBe("two\n");
    const later = log.read();
    await truncate(path, 0);
    await Bun.sleep(20);
    await appendFile(path, "three\n");
    expect(text(await later)).toBe("three\n");
    log.close();
  });

  test("is given in pieces, and ends when it is closed or nothing can come any more", async () => {
    await writeFile(path, "first\n");
    let isOver = false;
    const log = await follow({ isOver: () => isOver, pieceBytes: 2 });
    expect(text(await log.read())).toBe("first\n");
    await appendFile(path, "abc");
    isOver = true;
    expect([text(await log.read()), text(await log.read()), await log.read()]).toEqual(["ab", "c", null]);
    const other = await follow();
    await other.read();
    const waiting = other.read();
    other.close();
    expect(await waiting).toBeNull();
  });

  test("that becomes something else is not read", async () => {
    await writeFile(path, "x\n");
    const log = await follow();
    await log.read();
    await writeFile(join(root, "secret"), "secret, and longer");
    await symlink(join(root, "secret"), join(root, "link"));
    await rename(join(root, "link"), path);
    await expect(log.read()).rejects.toMatchObject({ code: "FILE_NOT_REGULAR" });
  });
});

describe("the console of a sandbox", () => {
  async function machine(host: { hasConsole?: boolean; hasSerial?: boolean } = {}) {
    const world = await World.create();
    Object.assign(world.host, { hasConsole: true, ...host });
    const core = world.core();
    await core.operations.create(admin, { id: "vm", backend: "fake", backendRequest: {} });
    const log = join(world.instancesDir, "vm", "console.log");
    const lines = (count: number, follow = false) => core.consoles.consoleLog(admin, "vm", { lines: count, follow });
    return { world, core, log, lines, [Symbol.asyncDispose]: () => world[Symbol.asyncDispose]() };
  }

  const all = async (source: ByteSource): Promise<string> => {
    let found = "";
    for (let bytes = await source.read(); bytes !== null; bytes = await source.read()) found += text(bytes);
    return found;
  };

  test("is read while the sandbox runs and when it is stopped, and its record says where it lies", async () => {
    await using vm = await machine();
    await writeFile(vm.log, "a\nb\n");
    expect(await all(await vm.lines(1))).toBe("b\n");
    await vm.core.operations.stop(admin, "vm");
    expect(await all(await vm.lines(5))).toBe("a\nb\n");
    expect(vm.core.operations.get(admin, "vm").log_path).toBe(vm.log);
  });

  test("is followed until the sandbox is deleted", async () => {
    await using vm = await machine();
    await writeFile(vm.log, "a\n");
    const source = await vm.lines(1, true);
    expect(text(await source.read())).toBe("a\n");
    const rest = all(source);
    await vm.core.operations.remove(admin, "vm");
    expect(await rest).toBe("");
  });

  test("has one client at a time, while the sandbox runs or is paused", async () => {
    await using vm = await machine();
    const { consoles, operations } = vm.core;
    const first = await consoles.connectSerial(admin, "vm");
    await first.write(Buffer.from("ls\n"));
    expect(vm.world.host.typed).toEqual(["ls\n"]);
    await expect(consoles.connectSerial(admin, "vm")).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
    first.close();
    await operations.pause(admin, "vm");
    (await consoles.connectSerial(admin, "vm")).close();
    await operations.resume(admin, "vm");
    await operations.stop(admin, "vm");
    await expect(consoles.connectSerial(admin, "vm")).rejects.toMatchObject({ code: "INVALID_STATE" });
  });

  test("can only be read where the backend has no other", async () => {
    await using vm = await machine({ hasSerial: false });
    await writeFile(vm.log, `${"x".repeat(100 * 1024)}\nend`);
    const connection = await vm.core.consoles.connectSerial(admin, "vm");
    const recent = await connection.read();
    expect([recent?.length, text(recent)?.endsWith("\nend")]).toEqual([64 * 1024, true]);
    await appendFile(vm.log, "more");
    expect(text(await connection.read())).toBe("more");
    await expect(connection.write(Buffer.from("x"))).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
    connection.close();
  });

  test("that it has not is an empty log, and nothing to connect to", async () => {
    await using vm = await machine({ hasConsole: false });
    expect(await all(await vm.lines(5, true))).toBe("");
    await expect(vm.core.consoles.connectSerial(admin, "vm")).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
    expect(vm.core.operations.get(admin, "vm").log_path).toBeNull();
  });

  test("is nobody's but those who may see the sandbox", async () => {
    await using vm = await machine();
    const stranger = { ...admin, tenant: "other" };
    const request = { lines: 1, follow: false };
    await expect(vm.core.consoles.consoleLog(stranger, "vm", request)).rejects.toMatchObject({
      code: "SANDBOX_NOT_FOUND",
    });
    await expect(vm.core.consoles.connectSerial(stranger, "vm")).rejects.toMatchObject({ code: "SANDBOX_NOT_FOUND" });
  });
});
