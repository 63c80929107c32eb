import { describe, expect, test } from "bun:test";
import { decompressLz4Legacy, extractVmlinux, hasPvhEntry, kernelImage } from "./kernel.ts";

/** An ELF file that says nothing but where it is entered, and is long enough for matches in its compressed form. */
function vmlinux(noteType = 18): Uint8Array {
  const elf = new Uint8Array(4096);
  const view = new DataView(elf.buffer);
  view.setUint32(0, 0x7f454c46);
  view.setBigUint64(0x20, 64n, true);
  view.setUint16(0x38, 1, true);
  view.setUint32(64, 4, true);
  view.setBigUint64(64 + 8, 128n, true);
  view.setBigUint64(64 + 32, 20n, true);
  view.setUint32(128, 4, true);
  view.setUint32(132, 4, true);
  view.setUint32(136, noteType, true);
  elf.set(Buffer.from("Xen\0"), 140);
  return elf;
}

function bzImage(payload: Uint8Array): Uint8Array {
  const setup = new Uint8Array(2 * 512);
  const view = new DataView(setup.buffer);
  setup[0x1f1] = 1;
  setup.set(Buffer.from("HdrS"), 0x202);
  view.setUint16(0x206, 0x020f, true);
  view.setUint32(0x248, 16, true);
  view.setUint32(0x24c, payload.length, true);
  return Buffer.concat([setup, new Uint8Array(16), payload, new Uint8Array(64)]);
}

function withSize(compressed: Uint8Array, size: number): Uint8Array {
  const length = Buffer.alloc(4);
  length.writeUInt32LE(size);
  return Buffer.concat([compressed, length]);
}

function lz4Frame(...blocks: number[][]): Uint8Array {
  const parts = blocks.map((block) => {
    const length = Buffer.alloc(4);
    length.writeUInt32LE(block.length);
    return Buffer.concat([length, Buffer.from(block)]);
  });
  return Buffer.concat([Buffer.from([0x02, 0x21, 0x4c, 0x18]), ...parts]);
}

describe("the kernel inside a bzImage", () => {
  const elf = vmlinux();

  test("is found whatever it is compressed with", async () => {
    const zstd = withSize(Bun.zstdCompressSync(elf), elf.length);
    const gzip = Bun.gzipSync(new Uint8Array(elf));
    for (const payload of [zstd, gzip]) expect(Buffer.compare(await extractVmlinux(bzImage(payload)), elf)).toBe(0);
  });

  test("is kept uncompressed when it can be entered by PVH, else the bzImage as it was", async () => {
    const image = bzImage(Bun.gzipSync(new Uint8Array(elf)));
    expect(await kernelImage(image)).toMatchObject({ format: "vmlinux" });
    const other = bzImage(Bun.gzipSync(new Uint8Array(vmlinux(17))));
    expect(await kernelImage(other)).toEqual({ format: "bzimage", content: other });
  });

  test("is refused when it is cut off, of no known kind or no kernel", async () => {
    const image = bzImage(withSize(Bun.zstdCompressSync(elf), elf.length));
    const refusals = [
      image.subarray(0, 700),
      image.subarray(0, 1100),
      new Uint8Array(2048),
      bzImage(new Uint8Array(64)),
    ];
    for (const file of refusals)
      await expect(kernelImage(file)).rejects.toMatchObject({ code: "TEMPLATE_BUILD_FAILED" });
  });
});

test("an ELF file without that note has no PVH entry, and a broken one neither", () => {
  expect(hasPvhEntry(vmlinux())).toBe(true);
  expect(hasPvhEntry(vmlinux(1))).toBe(false);
  expect(hasPvhEntry(vmlinux().subarray(0, 100))).toBe(false);
});

describe("LZ4", () => {
  test("literals, matches that overlap, long lengths, and several blocks", () => {
    // "ab", then 30 bytes from two back; the second block goes on from the first.
    const first = [0x2f, 0x61, 0x62, 2, 0, 30 - 4 - 15, 0x10, 0x63];
    const second = [0xf0, 3, ...Array.from({ length: 18 }, () => 0x64)];
    const output = decompressLz4Legacy(lz4Frame(first, second), 2 + 30 + 1 + 18);
    expect(Buffer.from(output).toString()).toBe(`${"ab".repeat(16)}c${"d".repeat(18)}`);
  });

  test("what is broken is refused", () => {
    const broken = [
      [0x20, 0x61],
      [0x0f, 1, 0, 0],
      [0x1f, 0x61, 9, 0, 0],
      [0x10, 0x61, 0, 0],
      [0xf0, 255, 255],
    ];
    for (const block of broken) expect(() => decompressLz4Legacy(lz4Frame(block), 100)).toThrow("broken");
    expect(() => decompressLz4Legacy(lz4Frame([0x10, 0x61]), 2)).toThrow("broken");
  });
});
