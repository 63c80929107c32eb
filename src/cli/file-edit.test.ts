import { afterEach, beforeEach, expect, test } from "bun:test";
import { chmod, chown, lstat, mkdtemp, readdir, rm, stat, symlink } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { keepCopy, openForEdit, replaceText } from "./file-edit.ts";

const MAX_BYTES = 1000;
let directory = "";
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-edit-"));
});
afterEach(() => rm(directory, { recursive: true }));

test("owner and mode stay, a link stays a link, and the copy is what it was", async () => {
  const [target, link] = [join(directory, "target"), join(directory, "link")];
  await Bun.write(target, "\uFEFFone\r\n");
  await chmod(target, 0o640);
  if (process.geteuid?.() === 0) await chown(target, 12_345, 54_321);
  await symlink(target, link);
  const file = await openForEdit(link, MAX_BYTES);
  await keepCopy(file, `${target}.bak`);
  await replaceText(file, "two");
  expect((await lstat(link)).isSymbolicLink()).toBe(true);
  expect(await Bun.file(link).text()).toBe("two");
  expect([...(await Bun.file(`${target}.bak`).bytes())]).toEqual([...new TextEncoder().encode("\uFEFFone\r\n")]);
  for (const path of [target, `${target}.bak`]) {
    const { uid, gid, mode } = await stat(path);
    expect([mode & 0o7777, uid, gid]).toEqual([0o640, file.uid, file.gid]);
  }
  expect((await readdir(directory)).toSorted()).toEqual(["link", "target", "target.bak"]);
});

test("a change of somebody else is not overwritten, and nothing is left behind", async () => {
  const path = join(directory, "busy");
  await Bun.write(path, "one");
  const file = await openForEdit(path, MAX_BYTES);
  await Bun.write(path, "theirs");
  await expect(replaceText(file, "ours")).rejects.toThrow("changed meanwhile");
  expect(await Bun.file(path).text()).toBe("theirs");
  expect((await readdir(directory)).filter((name) => name.includes(".new-"))).toEqual([]);
});

test("what is no bounded text file is refused", async () => {
  const large = join(directory, "large");
  await Bun.write(large, "x".repeat(MAX_BYTES + 1));
  const binary = join(directory, "binary");
  await Bun.write(binary, new Uint8Array([0xff]));
  await expect(openForEdit(large, MAX_BYTES)).rejects.toThrow("larger");
  await expect(openForEdit(binary, MAX_BYTES)).rejects.toThrow();
  await expect(openForEdit(directory, MAX_BYTES)).rejects.toThrow("not a regular file");
  await expect(openForEdit(join(directory, "missing"), MAX_BYTES)).rejects.toThrow("ENOENT");
});
