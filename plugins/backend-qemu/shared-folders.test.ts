// Which places of the host a machine may share, and how guest and QEMU are told of them.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { mkdir, mkdtemp, realpath, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { hostFacts } from "../../src/registry/testing.ts";
import { assertShareable, folderArguments, foldersForGuest, sharedFolders } from "./shared-folders.ts";

let root: string;
beforeAll(async () => {
  root = await realpath(await mkdtemp(join(tmpdir(), "folders-")));
  for (const name of ["state", "state/instances", "state-of-others", "run", "data", "data/deep"]) {
    await mkdir(join(root, name));
  }
  await writeFile(join(root, "data/file"), "");
  await symlink(join(root, "data"), join(root, "link"));
});
afterAll(() => rm(root, { recursive: true }));

const refusal = async (path: string): Promise<string> => {
  const facts = { ...hostFacts(join(root, "state"), null), runDir: join(root, "run") };
  const host = { ...facts, instancesDir: join(root, "state/instances") };
  const folder = { host_path: path, guest_path: "/mnt", read_only: false };
  return await assertShareable([folder], host).then(
    () => "",
    (error: Error) => error.message,
  );
};

describe("a place of the host", () => {
  test("is shared when it is a directory that is nobody else's", async () => {
    expect(await refusal(join(root, "data"))).toBe("");
    expect(await refusal(join(root, "data/deep"))).toBe("");
    expect(await refusal(join(root, "state-of-others"))).toBe("");
  });

  test.each([
    ["link", "reached through a link; name"],
    ["link/deep", "reached through a link; name"],
    ["data/file", "not a directory"],
    ["data/none", "ENOENT"],
    ["state", "agent's own files"],
    ["state/instances", "agent's own files"],
    ["run", "agent's own files"],
    ["", "agent's own files"],
  ])("%j is refused", async (name, words) => {
    expect(await refusal(join(root, name))).toContain(words);
  });
});

describe("a wish for folders", () => {
  const wish = (host_path: string, guest_path: string) => ({ host_path, guest_path });

  test("is taken with its paths in one form", () => {
    expect(sharedFolders.parse([wish("/a//b/", "/mnt/x/")])).toEqual([
      { host_path: "/a/b", guest_path: "/mnt/x", read_only: false },
    ]);
    expect(sharedFolders.parse([wish("/devices", "/mnt/x"), wish("/devices", "/mnt/xy")])).toHaveLength(2);
  });

  test.each([
    [[wish("a", "/mnt")]],
    [[wish("/a/../b", "/mnt")]],
    [[wish("/", "/mnt")]],
    [[wish("/a", "/")]],
    [[wish("/a", "//")]],
    [[wish("/proc/self", "/mnt")]],
    [[wish("//dev/", "/mnt")]],
    [[wish("/a", "/sys/x")]],
    [[wish("/a\0", "/mnt")]],
    [[wish("/a", "/mnt"), wish("/b", "/mnt")]],
    [[wish("/a", "/mnt"), wish("/b", "/mnt/deep")]],
    [[{ ...wish("/a", "/mnt"), tag: "x" }]],
    [Array.from({ length: 9 }, (_, at) => wish("/a", `/mnt/${at}`))],
  ])("%j is refused", (folders) => {
    expect(sharedFolders.safeParse(folders).success).toBe(false);
  });

  test("is told to the guest and to QEMU by the same tags", () => {
    const folders = sharedFolders.parse([wish("/a", "/mnt/a"), { ...wish("/b", "/mnt/b"), read_only: true }]);
    expect(foldersForGuest(folders)).toEqual([
      { tag: "fs0", path: "/mnt/a", read_only: false },
      { tag: "fs1", path: "/mnt/b", read_only: true },
    ]);
    expect(folderArguments(folders, "/run/a,b", "pci")).toEqual([
      ...["-chardev", "socket,id=fs0,path=/run/a,,b/fs0.sock"],
      ...["-device", "vhost-user-fs-pci,chardev=fs0,tag=fs0,queue-size=1024"],
      ...["-chardev", "socket,id=fs1,path=/run/a,,b/fs1.sock"],
      ...["-device", "vhost-user-fs-pci,chardev=fs1,tag=fs1,queue-size=1024"],
    ]);
  });
});
