import { afterEach, describe, expect, test } from "bun:test";
import { existsSync } from "node:fs";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { findCgroups, missingControllers, removeCgroups } from "../host/cgroup.ts";
import { cgroupData, makeCgroups, planCgroups } from "./cgroup.ts";

const isRoot = process.getuid?.() === 0;
const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).toReversed()) await cleanup();
});

async function fakeHost(controllers: string): Promise<string> {
  const dir = await mkdtemp(join(tmpdir(), "cgroup-"));
  cleanups.push(() => rm(dir, { recursive: true }));
  await mkdir(join(dir, "v2"));
  await writeFile(join(dir, "v2", "cgroup.controllers"), controllers);
  await writeFile(
    join(dir, "mountinfo"),
    `30 20 0:25 / ${dir}/v2 rw,nosuid - cgroup2 cgroup2 rw\n31 20 0:26 / ${dir}/memory rw - cgroup cgroup rw,memory\n`,
  );
  return dir;
}

describe("control-group layout", () => {
  test("a unified hierarchy with both controllers needs no v1 leaf", async () => {
    const dir = await fakeHost("cpu memory pids\n");
    const host = await findCgroups(join(dir, "mountinfo"));
    expect(host.v2Controllers).toEqual(["memory", "pids"]);
    expect(planCgroups(host, "abc").leaves).toEqual({
      init_procs: [`${dir}/v2/fluxvm.slice/abc/init/cgroup.procs`],
      work_v2: `${dir}/v2/fluxvm.slice/abc/work`,
      work_v1: [],
    });
    expect(missingControllers(host)).toEqual([]);
  });

  test("a controller on v1 gives a v1 leaf, an absent one is reported", async () => {
    const dir = await fakeHost("hugetlb\n");
    const host = await findCgroups(join(dir, "mountinfo"));
    expect(planCgroups(host, "abc").leaves.work_v1).toEqual([`${dir}/memory/fluxvm.slice/abc/work`]);
    expect(missingControllers(host)).toEqual(["pids"]);
  });

  test("release refuses a directory that is not ours", async () => {
    await expect(removeCgroups({ dirs: [tmpdir()] })).rejects.toThrow("not under");
  });
});

describe.skipIf(!isRoot)("control groups of this host", () => {
  test("made with limits, removed with a process inside, and again when gone", async () => {
    const host = await findCgroups();
    const name = `test${process.pid}`;
    const set = planCgroups(host, name);
    cleanups.push(() => removeCgroups(cgroupData(set)));
    await makeCgroups(host, set, { memoryMib: 64, processesMax: 7 });
    const limits = [...set.leaves.work_v1, ...(set.leaves.work_v2 === null ? [] : [set.leaves.work_v2])];
    const pids = limits.map((dir) => join(dir, "pids.max")).find((path) => existsSync(path));
    expect(pids).toBeDefined();
    expect((await readFile(pids ?? "", "utf8")).trim()).toBe("7");

    const sleeper = Bun.spawn(["sleep", "60"], { cgroup: set.supervisor ?? set.leaves.work_v1[0] ?? "" });
    await removeCgroups(cgroupData(set));
    expect(await sleeper.exited).not.toBe(0);
    for (const dir of set.dirs) expect(existsSync(dir)).toBe(false);
    await removeCgroups(cgroupData(set));
  });
});
