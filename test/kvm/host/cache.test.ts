import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Cache, type Part } from "./cache.ts";

let folder: string;
let builds: string[];

beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), "fluxvm-cache-"));
  builds = [];
});
afterEach(() => rm(folder, { recursive: true }));

const open = (): Promise<Cache> => Cache.open(folder, () => undefined);

function part(recipe: string, build = async (): Promise<void> => undefined): Part {
  return {
    name: "part",
    recipe: [recipe],
    async build(target) {
      builds.push(recipe);
      await build();
      await Bun.write(join(target, "content"), recipe);
    },
  };
}

async function parts(): Promise<string[]> {
  return (await readdir(folder)).filter((name) => name.startsWith("part-"));
}

test("users at the same time build a part once", async () => {
  const slow = part("a", () => Bun.sleep(50));
  const used = await Promise.all([1, 2, 3].map(async () => (await open()).use(slow)));
  expect(builds).toEqual(["a"]);
  expect(new Set(used.map((use) => use.folder)).size).toBe(1);
  expect(await Bun.file(join(used[0]?.folder ?? "", "content")).text()).toBe("a");
});

test("a changed recipe replaces what nobody uses, and spares what somebody does", async () => {
  const cache = await open();
  const first = await cache.use(part("a"));
  const second = await cache.use(part("b"));
  expect((await parts()).length).toBe(2);
  first.lock.release();
  second.lock.release();
  const third = await cache.use(part("c"));
  expect(await parts()).toEqual([third.folder.slice(folder.length + 1)]);
  expect(builds).toEqual(["a", "b", "c"]);
});

test("a part that is forgotten is built again, unless somebody uses it", async () => {
  const cache = await open();
  const first = await cache.use(part("a"));
  await cache.forget(part("a"));
  const second = await cache.use(part("a"));
  expect(builds).toEqual(["a"]);
  first.lock.release();
  second.lock.release();
  await cache.forget(part("a"));
  expect(await parts()).toEqual([]);
  await cache.use(part("a"));
  expect(builds).toEqual(["a", "a"]);
});

test("a build that fails leaves no part, and the next one starts afresh", async () => {
  const cache = await open();
  const failing = part("a", () => Promise.reject(new Error("no disk")));
  await expect(cache.use(failing)).rejects.toThrow("no disk");
  expect((await cache.use(part("a"))).folder).toContain("part-");
  expect(builds).toEqual(["a", "a"]);
});

test("files of a run go with it, or with the next run when its process was killed", async () => {
  const script = `
    const { Cache } = await import(${JSON.stringify(join(import.meta.dir, "cache.ts"))});
    const run = await (await Cache.open(${JSON.stringify(folder)}, () => undefined)).openRun();
    console.log(run.folder);
    await Bun.sleep(60_000);`;
  const child = Bun.spawn([process.execPath, "-e", script], { stdout: "pipe" });
  const { value } = await child.stdout.getReader().read();
  const left = Buffer.from(value ?? new Uint8Array(0))
    .toString()
    .trim();
  const cache = await open();
  const beside = await cache.openRun();
  expect(existsSync(left)).toBe(true);
  child.kill("SIGKILL");
  await child.exited;
  const own = await cache.openRun();
  expect([existsSync(left), existsSync(beside.folder), existsSync(own.folder)]).toEqual([false, true, true]);
  await own.close();
  await beside.close();
  expect(await readdir(join(folder, "runs"))).toEqual([]);
});
