// Mounts, reflinks and subvolumes on a btrfs of the test's own. Needs root, loop devices and mkfs.btrfs.
import { afterAll, beforeAll, describe, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { codeOf } from "../testing.ts";
import { btrfsIdentity, createSubvolume, deleteSubvolume, enableQuota } from "./btrfs.ts";
import { allocateFile, cloneFile, fileSystemFacts, syncFileSystem } from "./files.ts";
import { mountFlags, mountImage, unmount } from "./mounts.ts";
import { copyTree, removeTree } from "./trees.ts";

const MIB = 1024 * 1024;
const BTRFS_MAGIC = 0x9123683e;
const TOOL = Bun.which("mkfs.btrfs", { PATH: `${process.env.PATH}:/usr/sbin:/sbin` });
const missing = [
  process.geteuid?.() === 0 ? null : "root",
  existsSync("/dev/loop-control") ? null : "/dev/loop-control",
  TOOL === null ? "mkfs.btrfs" : null,
].filter((need) => need !== null);

describe.skipIf(missing.length > 0)(`on btrfs${missing.length > 0 ? ` (needs ${missing.join(", ")})` : ""}`, () => {
  const directory = mkdtempSync(join(tmpdir(), "fluxvm-mount-"));
  const uuid = crypto.randomUUID();
  const at = join(directory, "mounted");
  const image = join(directory, "image");
  const request = { target: at, type: "btrfs", options: "nodiscard", flags: mountFlags.noSuid | mountFlags.noDevices };

  beforeAll(async () => {
    mkdirSync(at);
    await allocateFile(image, 256 * MIB);
    expect(Bun.spawnSync([TOOL ?? "", "-q", "-K", "-U", uuid, image]).exitCode).toBe(0);
    await mountImage(image, request);
  });
  afterAll(async () => {
    await unmount(at, { detach: false });
    rmSync(directory, { recursive: true });
  });

  test("a file system is known by its type and UUID", async () => {
    expect((await fileSystemFacts(at)).type).toBe(BTRFS_MAGIC);
    expect(await btrfsIdentity(at)).toEqual({ uuid, subvolumeId: 5 });
    expect(await codeOf(btrfsIdentity("/proc"))).toBe("ENOTTY");
  });

  test("a busy mount stays, one that is not there is an error", async () => {
    const holder = Bun.spawn(["sleep", "60"], { cwd: at });
    expect(await codeOf(unmount(at, { detach: false }))).toBe("EBUSY");
    holder.kill("SIGKILL");
    await holder.exited;
    expect(await codeOf(unmount(directory, { detach: false }))).toBe("EINVAL");
    expect(await codeOf(mountImage(join(directory, "missing"), request))).toBe("ENOENT");
  });

  test("clones of files share their blocks, and a failed clone leaves nothing", async () => {
    const source = join(at, "source");
    writeFileSync(source, crypto.getRandomValues(new Uint8Array(65_536)));
    await cloneFile(source, join(at, "clone"), 0o640);
    expect(readFileSync(join(at, "clone"))).toEqual(readFileSync(source));
    expect(statSync(join(at, "clone")).mode & 0o777).toBe(0o640);
    expect(await codeOf(cloneFile(source, join(at, "clone"), 0o640))).toBe("EEXIST");

    expect(await codeOf(cloneFile(source, join(directory, "elsewhere"), 0o600))).toBe("EXDEV");
    expect(existsSync(join(directory, "elsewhere"))).toBe(false);
  });

  test("copies of trees take no room for file contents", async () => {
    const source = join(at, "tree");
    mkdirSync(join(source, "a"), { recursive: true });
    const content = Buffer.alloc(24 * MIB, "content");
    for (const name of ["one", "a/two"]) writeFileSync(join(source, name), content);
    await syncFileSystem(at);
    const before = (await fileSystemFacts(at)).availableBytes;

    for (const name of ["copy1", "copy2", "copy3"]) {
      await copyTree({ source, target: join(at, name), bytesMax: 64 * MIB, entriesMax: 10 });
    }
    await syncFileSystem(at);

    expect(before - (await fileSystemFacts(at)).availableBytes).toBeLessThan(8 * MIB);
    expect(readFileSync(join(at, "copy3/a/two")).equals(content)).toBe(true);
    for (const name of ["tree", "copy1", "copy2", "copy3"]) await removeTree(join(at, name));
  });

  test("a subvolume without quotas is refused whole, and names are single components", async () => {
    const subvolume = { parent: at, name: "v", limitBytes: MIB, simpleQuota: false, mode: 0o700, uid: 0, gid: 0 };
    expect(await codeOf(createSubvolume(subvolume))).toBe("ENOTCONN");
    expect(existsSync(join(at, "v"))).toBe(false);
    await enableQuota(at);
    expect((await createSubvolume(subvolume)).subvolumeId).toBeGreaterThan(255);
    for (const name of ["", ".", "./", "..", "/", "v/", "../mounted/v", "x".repeat(256)]) {
      expect(await codeOf(createSubvolume({ ...subvolume, name }))).toBe("EINVAL");
      expect(await codeOf(deleteSubvolume(at, name))).toBe("EINVAL");
    }
    expect(await codeOf(createSubvolume(subvolume))).toBe("EEXIST");
    expect((await deleteSubvolume(at, "v"))?.subvolumeId).toBeGreaterThan(255);
    expect(await deleteSubvolume(at, "v")).toBeNull();
  });
});
