// The layer of a disk around a start from a snapshot: out of the way while it goes on, back when it fails, gone when it does not.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdir, mkdtemp, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { forgetLayerBefore, prepareLayer } from "./layer.ts";

let volume: string;
beforeEach(async () => {
  volume = await mkdtemp(join(tmpdir(), "layer-"));
});
afterEach(() => rm(volume, { recursive: true }));

const layer = () => join(volume, "disk.layer");
const content = () => readFile(layer(), "utf8");

test("of a start without a snapshot stays", async () => {
  await prepareLayer(volume, false);
  await writeFile(layer(), "written");
  await prepareLayer(volume, false);
  await forgetLayerBefore(volume);
  expect(await content()).toBe("written");
});

test("is gone once a machine runs from a snapshot", async () => {
  await writeFile(layer(), "written");
  await prepareLayer(volume, true);
  expect(await readdir(volume)).not.toContain("disk.layer");
  await writeFile(layer(), "of the snapshot");
  await forgetLayerBefore(volume);
  await prepareLayer(volume, false);
  expect([await content(), await readdir(volume)]).toEqual(["of the snapshot", ["disk.layer"]]);
});

test.each([true, false])(
  "is back after starts that failed, whatever they left (next from a snapshot: %p)",
  async (next) => {
    await writeFile(layer(), "written");
    for (const _ of [1, 2]) {
      await prepareLayer(volume, true);
      await writeFile(layer(), "half");
    }
    await prepareLayer(volume, next);
    if (next) await prepareLayer(volume, false);
    expect([await content(), await readdir(volume)]).toEqual(["written", ["disk.layer"]]);
  },
);

test("and what a machine puts in its place are no hindrance", async () => {
  for (const name of ["disk.layer", "disk.layer.unfinished", "disk.layer.before-restore"]) {
    await mkdir(join(volume, name, "full"), { recursive: true });
  }
  await prepareLayer(volume, true);
  await writeFile(layer(), "of the snapshot");
  await forgetLayerBefore(volume);
  expect([await content(), await readdir(volume)]).toEqual(["of the snapshot", ["disk.layer"]]);
});
