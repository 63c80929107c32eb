import { afterAll, beforeAll, expect, test } from "bun:test";
import { chmod, chown, mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { distrustOf } from "./trusted-path.ts";

const euid = process.geteuid?.() ?? 0;
const NOBODY = 65_534;
let root: string;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "trusted-"));
});
afterAll(() => rm(root, { recursive: true, force: true }));

/** A directory with a file `a` in it. */
async function place(name: string): Promise<{ readonly directory: string; readonly file: string }> {
  const directory = join(root, name);
  await mkdir(directory, { mode: 0o755 });
  const file = join(directory, "a");
  await writeFile(file, "", { mode: 0o644 });
  return { directory, file };
}

test("what is ours in directories of ours is trusted, also below a sticky one", async () => {
  const { directory, file } = await place("own");
  expect([distrustOf(file, "file"), distrustOf(directory, "directory"), distrustOf("/", "directory")]).toEqual([
    null,
    null,
    null,
  ]);
  await chmod(directory, 0o1777);
  expect(distrustOf(file, "file")).toBeNull();
  expect(distrustOf(directory, "directory")).toBe(`${directory} can be written by other users`);
});

test("what group or others may write is not, nor what is below it", async () => {
  const { directory, file } = await place("writable");
  for (const mode of [0o664, 0o646]) {
    await chmod(file, mode);
    expect(distrustOf(file, "file")).toBe(`${file} can be written by other users`);
  }
  await chmod(file, 0o644);
  for (const mode of [0o775, 0o757]) {
    await chmod(directory, mode);
    expect(distrustOf(file, "file")).toBe(`${directory} can be written by other users`);
  }
});

test("links are followed by this rule, every one of them", async () => {
  const { file } = await place("target");
  const shared = await place("shared");
  await chmod(shared.directory, 0o777);
  const links = join(root, "links");
  await mkdir(links);
  const link = async (name: string, target: string): Promise<string> => {
    await symlink(target, join(links, name));
    return join(links, name);
  };
  expect(distrustOf(await link("file", file), "file")).toBeNull();
  expect(distrustOf(join(await link("relative", "../target"), "a"), "file")).toBeNull();
  expect(distrustOf(await link("up", ".."), "directory")).toBeNull();
  expect(distrustOf(join(links, "up"), "file")).toContain("is not a regular file");
  expect(distrustOf(join(links, "up"), "directory")).toBeNull();
  // The end is ours, and somebody else decides whether it stays the end.
  await symlink(file, join(shared.directory, "detour"));
  expect(distrustOf(await link("detour", join(shared.directory, "detour")), "file")).toContain(
    "written by other users",
  );
  expect(distrustOf(await link("circle", "circle"), "file")).toContain("too many symbolic links");
  expect(distrustOf(await link("nowhere", "/nowhere/at/all"), "file")).toContain("cannot be examined");
  expect(distrustOf(await link("process", `/proc/self/fd/0`), "file")).not.toBeNull();
});

test("odd paths, and what is something else than it should be, are not", async () => {
  const { directory, file } = await place("odd");
  expect(distrustOf(file, "directory")).toBe(`${file} is not a directory`);
  expect(distrustOf(directory, "file")).toBe(`${directory} is not a regular file`);
  expect(distrustOf(join(file, "below"), "file")).toBe(`${file} is not a directory`);
  for (const path of [`${directory}/../odd/a`, "a", `${directory}/`, `${directory}//a`]) {
    expect(distrustOf(path, "file")).toContain("plain absolute path");
  }
  expect(distrustOf(join(directory, "none"), "file")).toContain("cannot be examined");
});

test("what belongs to another user is not, whoever that is", async () => {
  const { directory, file } = await place("foreign");
  // To uid 65534 our own file is foreign unless we are root; to us, a file of that user is.
  if (euid === 0) await chown(file, NOBODY, NOBODY);
  const reader = euid === 0 ? 0 : NOBODY;
  expect(distrustOf(file, "file", reader)).toMatch(/belongs to uid/);
  if (euid !== 0) return;
  expect(distrustOf(file, "file", NOBODY)).toBeNull();
  await chown(directory, NOBODY, NOBODY);
  expect(distrustOf(file, "file", NOBODY)).toBeNull();
  await chown(file, 0, 0);
  expect(distrustOf(file, "file", 0)).toContain(`${directory} belongs to uid ${NOBODY}`);
});
