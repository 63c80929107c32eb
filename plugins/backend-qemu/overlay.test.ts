// Fresh disks against QEMU's own tool: it finds nothing wrong with them, and reads what lies below through them.
import { afterAll, expect, test } from "bun:test";
import { mkdtemp, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { writeOverlay } from "./overlay.ts";

const GIB = 1024 ** 3;
const directory = await mkdtemp(join(tmpdir(), "overlay-"));
afterAll(() => rm(directory, { recursive: true }));

async function tool(...args: string[]): Promise<string> {
  const child = Bun.spawn(["qemu-img", ...args], { stdout: "pipe", stderr: "pipe" });
  const [out, err, code] = await Promise.all([
    new Response(child.stdout).text(),
    new Response(child.stderr).text(),
    child.exited,
  ]);
  if (code !== 0) throw new Error(`qemu-img ${args[0]}: ${code} ${out} ${err}`);
  return out;
}

test.each([
  ["512 bytes", 512],
  ["half a gibibyte and a sector", GIB / 2 + 512],
  ["64 GiB", 64 * GIB],
  ["9 TiB", 9216 * GIB],
])("a disk of %s is sound and reads as its image", async (_, bytes) => {
  const image = join(directory, `image-${bytes}`);
  const content = Buffer.alloc(512, "content of the image ");
  await writeFile(image, content);
  const path = join(directory, `disk-${bytes}`);
  await writeOverlay(path, { bytes, image, imageFormat: "raw" }, null);
  expect(JSON.parse(await tool("check", "--output=json", path))).toMatchObject({ "check-errors": 0 });
  expect(JSON.parse(await tool("info", "--output=json", path))).toMatchObject({
    format: "qcow2",
    "virtual-size": bytes,
    "backing-filename": image,
    "backing-filename-format": "raw",
  });
  const read = join(directory, "read");
  await tool("dd", "-f", "qcow2", "-O", "raw", "bs=512", "count=1", `if=${path}`, `of=${read}`);
  expect(Buffer.from(await Bun.file(read).bytes())).toEqual(content);
  expect((await stat(path)).mode & 0o777).toBe(0o600);
});

test("what is there already is never written over", async () => {
  const path = join(directory, "there");
  await writeFile(path, "somebody's");
  const again = writeOverlay(path, { bytes: 512, image: "/i", imageFormat: "raw" }, null);
  await expect(again).rejects.toMatchObject({ code: "EEXIST" });
  expect(await Bun.file(path).text()).toBe("somebody's");
});
