// The pool through its life: made once, found again, finished after crashes, full, given back. Needs root and btrfs.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { allocateFile } from "../../ffi/host/files.ts";
import { mountFlags, mountImage, unmount } from "../../ffi/host/mounts.ts";
import { isHostError } from "../../ffi/status.ts";
import { ConformanceJournal } from "../../src/conformance/journal.ts";
import type { HostFacts } from "../../src/contracts/plugin.ts";
import type { Volume } from "../../src/contracts/storage.ts";
import { codeOf } from "../../src/errors/testing.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";
import { BtrfsStorage } from "./driver.ts";
import { options } from "./options.ts";
import { storageBtrfs } from "./plugin.ts";

const MIB = 1024 * 1024;
const UID = 200_123;

let root: string;
let host: HostFacts;
let storage: BtrfsStorage;
let journal: ConformanceJournal;

beforeEach(() => {
  root = mkdtempSync(join(tmpdir(), "fluxvm-btrfs-"));
  begin(root);
});
afterEach(async () => {
  await journal.releaseAll();
  await storage.close();
  rmSync(root, { recursive: true });
});

function begin(directory: string): void {
  host = hostFacts(directory);
  mkdirSync(host.stateDir, { recursive: true, mode: 0o700 });
  storage = open();
  journal = new ConformanceJournal(storage.releases);
}

function open(): BtrfsStorage {
  const report = { usable: true, capabilities: [], missing: [] };
  return new BtrfsStorage({
    host,
    options: options.parse({ pool_size_mib: 512 }),
    log: silentLog,
    guest: noGuest,
    report,
  });
}

function request(name: string, capMib = 64) {
  return { name, capBytes: capMib * MIB, uid: UID, gid: UID };
}

function sh(command: string): { exitCode: number; output: string } {
  const { exitCode, stdout, stderr } = Bun.spawnSync(["sh", "-c", command]);
  return { exitCode, output: `${stdout}${stderr}` };
}

/** Runs a command as the volume's owner, inside it. */
function inside(volume: Volume, command: string): { exitCode: number; output: string } {
  return sh(`cd '${volume.path}' && setpriv --reuid ${UID} --regid ${UID} --clear-groups sh -c '${command}'`);
}

function mountsBelow(directory: string): string[] {
  return readFileSync("/proc/self/mounts", "utf8")
    .split("\n")
    .filter((line) => line.includes(directory));
}

function loopsOf(directory: string): string[] {
  return readdirSync("/sys/block")
    .map((name) => `/sys/block/${name}/loop/backing_file`)
    .filter((path) => existsSync(path) && readFileSync(path, "utf8").startsWith(directory));
}

/** A loop device clears itself when its last user goes, which may be somebody who only looked at it. */
async function expectNoLoops(directory: string): Promise<void> {
  const deadline = performance.now() + 5_000;
  while (loopsOf(directory).length > 0 && performance.now() < deadline) await Bun.sleep(20);
  expect(loopsOf(directory)).toEqual([]);
}

const report = await storageBtrfs.probe(hostFacts(tmpdir()), options.parse({ pool_size_mib: 512 }));
const reasons = report.missing.map(({ reason }) => reason).join("; ");

describe.skipIf(!report.usable)(`the btrfs pool${reasons === "" ? "" : ` (${reasons})`}`, () => {
  test("is not there until the first volume, and gone from the host after the last", async () => {
    expect(await storage.openVolume("a")).toBeNull();
    expect(readdirSync(host.stateDir)).toEqual([]);

    await storage.createVolume(request("a"), journal);
    expect(mountsBelow(root)).toHaveLength(1);
    expect(mountsBelow(root)[0]).toContain("nosuid,nodev,noatime");
    expect(statSync(join(host.stateDir, "pool")).mode & 0o777).toBe(0o711);
    expect(statSync(join(host.stateDir, "pool.img")).blocks * 512).toBeGreaterThanOrEqual(512 * MIB);
    await storage.close();
    expect(mountsBelow(root)).toHaveLength(1);

    await journal.releaseAll();
    await storage.close();
    expect(mountsBelow(root)).toEqual([]);
    await expectNoLoops(root);
  });

  test("is used again by the next agent, and mounted again after a reboot", async () => {
    const volume = await storage.createVolume(request("a"), journal);
    writeFileSync(join(volume.path, "kept"), "kept");
    const next = open();
    expect(await next.openVolume("a")).toEqual(volume);
    expect(mountsBelow(root)).toHaveLength(1);

    await unmount(join(host.stateDir, "pool"), { detach: false });
    await expectNoLoops(root);
    expect(await next.openVolume("a")).toEqual(volume);
    expect(readFileSync(join(volume.path, "kept"), "utf8")).toBe("kept");
    expect(inside(volume, "dd if=/dev/zero of=big bs=1M count=80").exitCode).not.toBe(0);
  });

  test("is not attached twice while a sandbox still holds it mounted", async () => {
    const volume = await storage.createVolume(request("a"), journal);
    const other = join(root, "bind");
    mkdirSync(other);
    expect(sh(`mount --bind '${volume.path}' '${other}'`).exitCode).toBe(0);
    await unmount(join(host.stateDir, "pool"), { detach: false });

    expect(await open().openVolume("a")).toEqual(volume);
    expect(loopsOf(root)).toHaveLength(1);
    writeFileSync(join(volume.path, "new"), "seen");
    expect(readFileSync(join(other, "new"), "utf8")).toBe("seen");
    await unmount(other, { detach: false });
  });

  test("survives a power cut: what was synced is there, and it needs no check", async () => {
    const volume = await storage.createVolume(request("a"), journal);
    expect(
      inside(volume, "dd if=/dev/urandom of=synced bs=1M count=4 conv=fsync && sha256sum synced > sum && sync sum")
        .exitCode,
    ).toBe(0);
    inside(volume, "dd if=/dev/urandom of=lost bs=1M count=4; rm -f sum2");
    const [image, cut] = [join(host.stateDir, "pool.img"), join(root, "cut.img")];
    // The image as it lies on the disk at this moment, without anything being unmounted or flushed.
    expect(sh(`cp '${image}' '${cut}'`).exitCode).toBe(0);
    const { uuid } = JSON.parse(readFileSync(join(host.stateDir, "pool.json"), "utf8"));
    await unmount(join(host.stateDir, "pool"), { detach: false });
    // A cut leaves no mount: the kernel refuses the same file system again until it has quite left the first one.
    while (existsSync(join("/sys/fs/btrfs", uuid))) await Bun.sleep(1);
    expect(sh(`mv '${cut}' '${image}'`).exitCode).toBe(0);

    expect(await open().openVolume("a")).toEqual(volume);
    expect(inside(volume, "sha256sum -c sum").output).toBe("synced: OK\n");
    expect(inside(volume, "dd if=/dev/zero of=big bs=1M count=80").exitCode).not.toBe(0);
  });

  test("is finished after a crash while it was made", async () => {
    const fields = { version: 1, kind: "image", uuid: crypto.randomUUID(), size_bytes: 512 * MIB };
    const record = JSON.stringify(fields);
    writeFileSync(join(host.stateDir, "pool.json"), record);
    writeFileSync(join(host.stateDir, "pool.img.new"), "half");
    writeFileSync(join(host.stateDir, "pool.json.new"), "half");

    const volume = await storage.createVolume(request("a"), journal);
    expect(inside(volume, "echo works > file").exitCode).toBe(0);
    expect(readFileSync(join(host.stateDir, "pool.json"), "utf8")).toBe(record);
    expect(existsSync(join(host.stateDir, "pool.img.new"))).toBe(false);
  });

  test("an image without its record, and a damaged record, are reported and left alone", async () => {
    writeFileSync(join(host.stateDir, "pool.img"), "somebody's");
    expect(await codeOf(storage.createVolume(request("a"), journal))).toBe("STATE_UNAVAILABLE");
    expect(readFileSync(join(host.stateDir, "pool.img"), "utf8")).toBe("somebody's");

    writeFileSync(join(host.stateDir, "pool.json"), "{}");
    expect(await codeOf(storage.createVolume(request("a"), journal))).toBe("STATE_UNAVAILABLE");
    expect(await codeOf(storage.openVolume("a"))).toBe("STATE_UNAVAILABLE");
    expect(journal.held()).toEqual([]);
    rmSync(join(host.stateDir, "pool.json"));
  });

  test("a full pool refuses new volumes, and deleting makes room again", async () => {
    const hogs = await Promise.all(
      ["one", "two", "three"].map((name) => storage.createVolume(request(name, 4096), journal)),
    );
    expect(hogs.map(({ capBytes }) => capBytes)).toEqual([256 * MIB, 256 * MIB, 256 * MIB]);
    expect(inside(hogs[0] as Volume, "dd if=/dev/zero of=big bs=1M").output).toContain("Disk quota exceeded");
    expect(inside(hogs[1] as Volume, "dd if=/dev/zero of=big bs=1M count=100 conv=fsync").exitCode).toBe(0);
    inside(hogs[1] as Volume, "dd if=/dev/zero of=more bs=1M");
    expect(inside(hogs[2] as Volume, "dd if=/dev/zero of=big bs=1M").output).toContain("No space left");
    sh(`sync -f '${hogs[2]?.path}'`);
    expect(await codeOf(storage.createVolume(request("b"), journal))).toBe("HOST_FULL");
    expect(journal.held().map(({ name }) => name)).toEqual(["one", "two", "three"]);

    await journal.release("btrfs-volume", "one");
    const volume = await storage.createVolume(request("b"), journal);
    expect(inside(volume, "dd if=/dev/zero of=big bs=1M count=32").exitCode).toBe(0);
  });
});

describe.skipIf(!report.usable)(`a bounded volume${reasons === "" ? "" : ` (${reasons})`}`, () => {
  test("bounds data, metadata and a command that runs, not its neighbours", async () => {
    const [full, neighbour] = [
      await storage.createVolume(request("a"), journal),
      await storage.createVolume(request("b"), journal),
    ];

    expect(inside(full, "dd if=/dev/urandom of=big bs=1M").output).toContain("Disk quota exceeded");
    expect(inside(full, "i=0; while [ $i -lt 20000 ]; do : > f$i || exit 3; i=$((i+1)); done").exitCode).not.toBe(0);
    expect(inside(neighbour, "dd if=/dev/urandom of=some bs=1M count=32 conv=fsync").exitCode).toBe(0);
    sh(`sync -f '${full.path}'`);
    expect((await storage.usage(full)).bytes).toBeLessThanOrEqual(full.capBytes);
    expect(inside(full, "rm big && echo room > file && cat file").output).toBe("room\n");
  });

  test("when it is full it can still be cloned, opened and deleted", async () => {
    const volume = await storage.createVolume(request("a"), journal);
    inside(volume, "dd if=/dev/urandom of=big bs=1M");
    const clone = await storage.cloneVolume(volume, request("a.clone"), journal);
    const restarted = open();
    expect(await restarted.openVolume("a.clone")).toEqual(clone);

    await journal.releaseAll();
    expect(await restarted.openVolume("a")).toBeNull();
    expect(await restarted.openVolume("a.clone")).toBeNull();
  });

  test("subvolumes that its owner nests inside share its bound and go with it", async () => {
    const volume = await storage.createVolume(request("a"), journal);
    expect(inside(volume, "btrfs subvolume create n && btrfs subvolume create n/m").exitCode).toBe(0);
    expect(inside(volume, "dd if=/dev/urandom of=n/m/big bs=1M").output).toContain("Disk quota exceeded");
    sh(`sync -f '${volume.path}'`);
    expect((await storage.usage(volume)).bytes).toBeLessThanOrEqual(volume.capBytes);

    await journal.releaseAll();
    expect(readdirSync(join(host.stateDir, "pool"))).toEqual([]);
  });

  test("a release refuses what is no subvolume and what belongs to another pool", async () => {
    await storage.createVolume(request("a"), journal);
    const plain = join(host.stateDir, "pool", "plain");
    mkdirSync(plain);
    const release = storage.releases["btrfs-volume"];
    const [row] = journal.held();
    if (release === undefined || row === undefined) throw new Error("no row");

    expect(await codeOf(release({ ...row, name: "plain" }))).toBe("INTERNAL");
    expect(existsSync(plain)).toBe(true);
    rmSync(plain, { recursive: true });
    expect(await codeOf(release({ ...row, name: "../pool.img" }))).toBe("INVALID_ID");
    await release({ ...row, data: { pool: crypto.randomUUID() } });
    expect(await storage.openVolume("a")).not.toBeNull();
  });
});

describe.skipIf(!report.usable)(`a state directory on btrfs${reasons === "" ? "" : ` (${reasons})`}`, () => {
  let mounted: string;
  beforeEach(async () => {
    mounted = join(root, "mounted");
    mkdirSync(mounted);
    await allocateFile(join(root, "disk.img"), 1024 * MIB);
    expect(sh(`mkfs.btrfs -q -K '${join(root, "disk.img")}'`).exitCode).toBe(0);
    await mountImage(join(root, "disk.img"), {
      target: mounted,
      type: "btrfs",
      options: "nodiscard",
      flags: mountFlags.noDevices,
    });
    begin(mounted);
  });
  afterEach(async () => {
    await journal.releaseAll();
    await storage.close();
    // The kernel gives back the loop device of an image in there a moment after the image's unmount.
    const isUnmounted = (): Promise<boolean> =>
      unmount(mounted, { detach: false }).then(
        () => true,
        (error: unknown) => {
          if (isHostError(error, "EBUSY")) return false;
          throw error;
        },
      );
    while (!(await isUnmounted())) await Bun.sleep(1);
  });

  test("is the pool itself when its quotas are on, of the full kind too", async () => {
    expect(sh(`btrfs quota enable '${mounted}' && btrfs quota rescan -w '${mounted}'`).exitCode).toBe(0);

    const volume = await storage.createVolume(request("a"), journal);
    expect(readdirSync(host.stateDir).sort()).toEqual(["pool", "pool.json"]);
    expect(inside(volume, "dd if=/dev/urandom of=small bs=1M count=8 conv=fsync").exitCode).toBe(0);
    const clone = await storage.cloneVolume(volume, request("a.clone"), journal);
    expect(inside(clone, "ls").output).toBe("small\n");
    expect(inside(clone, "dd if=/dev/urandom of=big bs=1M").output).toContain("Disk quota exceeded");
    expect(await open().openVolume("a")).toEqual(volume);
    expect(inside(volume, "dd if=/dev/urandom of=big bs=1M").output).toContain("Disk quota exceeded");
  });

  test("gets an image when its quotas are off, because turning them on is the operator's decision", async () => {
    const volume = await storage.createVolume(request("a"), journal);

    expect(existsSync(join(host.stateDir, "pool.img"))).toBe(true);
    expect(inside(volume, "dd if=/dev/urandom of=big bs=1M").output).toContain("Disk quota exceeded");
    expect(sh(`btrfs qgroup show '${mounted}'`).output).toContain("quotas not enabled");
  });
});

test("a pool that cannot be made says why, with a remedy", async () => {
  const huge = await storageBtrfs.probe(host, options.parse({ pool_size_mib: 2 ** 30 }));
  expect(huge.usable).toBe(false);
  expect(huge.missing.find(({ capability }) => capability === "space")?.reason).toContain("MiB free below");
  const user = await storageBtrfs.probe({ ...host, uid: 1000 }, options.parse({}));
  expect(user.missing[0]).toMatchObject({ capability: "root", remedy: "run the agent as root" });
});
