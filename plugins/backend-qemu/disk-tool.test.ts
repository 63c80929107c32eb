// The disk of a sandbox: none is made that is larger than the host's operator allows, whatever its image is.
import { afterAll, beforeAll, expect, test } from "bun:test";
import { mkdtemp, readdir, rm, truncate, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ensureDisk } from "./disk-tool.ts";
import type { QemuSpec } from "./request.ts";

const GIB = 1024 ** 3;
let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "disk-tool-"));
});
afterAll(() => rm(directory, { recursive: true }));

test("a disk is as large as its image, or refused where that is too large", async () => {
  const image = join(directory, "image.raw");
  await writeFile(image, "");
  await truncate(image, 3 * GIB);
  const tool = {
    guestAgent: "/none",
    program: "/none",
    uid: null,
    output: join(directory, "log"),
    volumeDir: directory,
  };
  const spec = { image, image_format: "raw", disk_bytes: null } as QemuSpec;
  const refused = ensureDisk(tool, spec, 2);
  await expect(refused).rejects.toMatchObject({ code: "BAD_REQUEST", message: expect.stringContaining("at most 2") });
  expect(await readdir(directory)).toEqual(["image.raw"]);
  await ensureDisk(tool, spec, 3);
  expect(await readdir(directory)).toHaveLength(2);
});
