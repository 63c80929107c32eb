import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { dependencies, guestModules } from "./modules.ts";

let directory = "";

beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-modules-"));
});
afterEach(() => rm(directory, { recursive: true }));

/** An ELF file with nothing but module information. */
function module(...depends: string[]): Buffer {
  const information = Buffer.from(`license=GPL\0depends=${depends.join(",")}\0`);
  const names = Buffer.from("\0.modinfo\0.shstrtab\0");
  const elf = Buffer.alloc(64 + 3 * 64);
  elf.writeUInt32BE(0x7f454c46, 0);
  elf.writeBigUInt64LE(64n, 0x28);
  elf.writeUInt16LE(3, 0x3c);
  elf.writeUInt16LE(2, 0x3e);
  const section = (index: number, name: number, start: number, size: number): void => {
    elf.writeUInt32LE(name, 64 + index * 64);
    elf.writeBigUInt64LE(BigInt(start), 64 + index * 64 + 0x18);
    elf.writeBigUInt64LE(BigInt(size), 64 + index * 64 + 0x20);
  };
  section(1, 1, elf.length, information.length);
  section(2, 10, elf.length + information.length, names.length);
  return Buffer.concat([elf, information, names]);
}

async function put(files: Readonly<Record<string, Uint8Array | string>>): Promise<void> {
  for (const [path, content] of Object.entries(files)) {
    await mkdir(join(directory, dirname(path)), { recursive: true });
    await writeFile(join(directory, path), content);
  }
}

const REQUIRED = {
  "kernel/virtio/virtio.ko": module(),
  "kernel/block/virtio_blk.ko": module("virtio"),
  "kernel/virtio/virtio_pci.ko": module("virtio"),
  "modules.builtin": "kernel/fs/ext4/ext4.ko\n",
};

test("each module comes after what it depends on, and drivers before what finds devices", async () => {
  await put({
    ...REQUIRED,
    "kernel/char/virtio-rng.ko.zst": Bun.zstdCompressSync(module("virtio", "rng-core")),
    "kernel/rng-core.ko": module(),
  });
  const names = (await guestModules(directory)).map(({ name }) => name);
  expect(names).toEqual(["virtio", "virtio_blk", "rng_core", "virtio_rng", "virtio_pci"]);
});

test("a kernel that cannot read its root is refused, and so is a module that lacks another", async () => {
  const { "modules.builtin": _, ...without } = REQUIRED;
  await put(without);
  await expect(guestModules(directory)).rejects.toThrow("no ext4");
  await put({ ...REQUIRED, "kernel/net/virtio_net.ko": module("failover") });
  await expect(guestModules(directory)).rejects.toThrow("virtio_net needs failover");
});

test("an empty directory has no modules", async () => {
  await expect(guestModules(directory)).rejects.toThrow("no kernel modules");
});

test("what is no module is refused", () => {
  const whole = module("a");
  expect(dependencies(whole)).toEqual(["a"]);
  for (const file of [Buffer.from("text"), whole.subarray(0, 100), whole.subarray(0, whole.length - 8)]) {
    expect(() => dependencies(file)).toThrow("not an ELF file");
  }
});
