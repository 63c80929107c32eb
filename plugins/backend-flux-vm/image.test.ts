// Images: their size, and that none leads to other files of the host.
import { afterAll, expect, test } from "bun:test";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { imageBytes } from "./image.ts";

const directory = await mkdtemp(join(tmpdir(), "image-"));
afterAll(() => rm(directory, { recursive: true }));

async function image(content: Uint8Array): Promise<string> {
  const path = join(directory, crypto.randomUUID());
  await writeFile(path, content);
  return path;
}

function qcow2(change: (header: Buffer) => void = () => undefined): Buffer {
  const header = Buffer.alloc(512);
  header.writeUInt32BE(0x51_46_49_fb, 0);
  header.writeUInt32BE(3, 4);
  header.writeBigUInt64BE(1024n, 24);
  change(header);
  return header;
}

const refused = async (content: Uint8Array, format: "raw" | "qcow2"): Promise<string> => {
  const outcome = await imageBytes(await image(content), format).catch((error: unknown) => error);
  expect(outcome).toMatchObject({ code: "BAD_REQUEST" });
  return (outcome as Error).message;
};

test("a raw image is as large as its file, a qcow2 image as it says", async () => {
  expect(await imageBytes(await image(Buffer.alloc(1024)), "raw")).toBe(1024);
  expect(await imageBytes(await image(qcow2()), "qcow2")).toBe(1024);
  expect(await imageBytes(await image(qcow2((header) => header.writeUInt32BE(2, 4))), "qcow2")).toBe(1024);
});

test("what is short, broken or of another format is refused", async () => {
  expect(await refused(Buffer.alloc(0), "raw")).toContain("0 bytes");
  expect(await refused(Buffer.alloc(1000), "raw")).toContain("1000 bytes");
  expect(await refused(qcow2(), "raw")).toContain("image_format");
  expect(await refused(Buffer.alloc(512), "qcow2")).toContain("not a qcow2");
  expect(await refused(qcow2().subarray(0, 70), "qcow2")).toContain("not a qcow2");
  expect(
    await refused(
      qcow2((header) => header.writeUInt32BE(9, 4)),
      "qcow2",
    ),
  ).toContain("version");
  expect(
    await refused(
      qcow2((header) => header.writeBigUInt64BE(2n ** 60n, 24)),
      "qcow2",
    ),
  ).toContain("sectors");
});

test("one that has its content elsewhere, or is encrypted, is refused", async () => {
  expect(
    await refused(
      qcow2((header) => header.writeBigUInt64BE(104n, 8)),
      "qcow2",
    ),
  ).toContain("other files");
  expect(
    await refused(
      qcow2((header) => header.writeBigUInt64BE(4n, 72)),
      "qcow2",
    ),
  ).toContain("other files");
  expect(
    await refused(
      qcow2((header) => header.writeUInt32BE(1, 32)),
      "qcow2",
    ),
  ).toContain("encrypted");
});

test("a directory, a pipe and nothing are no images", async () => {
  const pipe = join(directory, "pipe");
  await Bun.spawn(["mkfifo", pipe]).exited;
  for (const path of [directory, pipe, join(directory, "absent")]) {
    await expect(imageBytes(path, "raw")).rejects.toMatchObject({ code: "BAD_REQUEST" });
  }
});
