// Control groups as directories of plain files: what is read of both hierarchies, and limits that are set whole or not.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { bootId, startTicks } from "./process.ts";
import { GroupResources, memoryOf } from "./resources.ts";

let root: string;
let v2: string;
let memoryV1: string;
let pidsV1: string;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "groups-"));
  [v2, memoryV1, pidsV1] = ["v2", "memory", "pids"].map((name) => join(root, name)) as [string, string, string];
  for (const dir of [v2, memoryV1, pidsV1]) await mkdir(dir);
});

afterEach(() => rm(root, { recursive: true, force: true }));

async function fill(dir: string, files: Record<string, string>): Promise<void> {
  for (const [name, text] of Object.entries(files)) await writeFile(join(dir, name), text);
}

const unified = () => new GroupResources({ v2, memoryV1: null, pidsV1: null });
const text = (dir: string, name: string) => readFile(join(dir, name), "utf8");
const PRESSURE = "some avg10=1.50 avg60=0.20 avg300=0.00 total=1234\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";

describe("on the unified hierarchy", () => {
  test("limits are written in the kernel's words", async () => {
    await fill(v2, {
      "cpu.max": "max 100000\n",
      "memory.max": "max\n",
      "io.weight": "default 100\n",
      "pids.max": "max\n",
      "cpuset.cpus": "\n",
    });
    await unified().limit({
      cpuQuotaPercent: 150,
      memoryMaxBytes: 1 << 30,
      ioWeight: 500,
      pidsMax: 64,
      cpusetCpus: "0-1",
    });
    // Written over what was there, as the kernel takes it, which a file keeps the rest of.
    expect((await text(v2, "cpu.max")).startsWith("150000 100000")).toBe(true);
    expect((await text(v2, "memory.max")).startsWith("1073741824")).toBe(true);
    expect((await text(v2, "io.weight")).startsWith("default 500")).toBe(true);
    expect((await text(v2, "pids.max")).startsWith("64")).toBe(true);
    expect((await text(v2, "cpuset.cpus")).startsWith("0-1")).toBe(true);
  });

  test("a limit whose controller is missing is named, and nothing is changed", async () => {
    await fill(v2, { "memory.max": "max\n" });
    await expect(unified().limit({ memoryMaxBytes: 4096, cpuQuotaPercent: 10 })).rejects.toMatchObject({
      code: "CAPABILITY_MISSING",
      details: { capability: "cgroup:cpu" },
    });
    expect(await text(v2, "memory.max")).toBe("max\n");
  });

  test("use is read, and what is not counted is null", async () => {
    await fill(v2, {
      "cpu.stat": "usage_usec 1500\nuser_usec 1000\n",
      "memory.current": "4096\n",
      "memory.max": "max\n",
      "io.stat": "254:0 rbytes=10 wbytes=20 rios=1\n254:16 rbytes=5 wbytes=1 rios=1\n",
    });
    expect(await unified().use()).toEqual({
      cpuUsageUs: 1500,
      memoryBytes: 4096,
      memoryMaxBytes: null,
      pids: null,
      pidsMax: null,
      ioReadBytes: 15,
      ioWriteBytes: 21,
    });
  });

  test("pressure is told of each resource, or missing", async () => {
    await fill(v2, { "cpu.pressure": PRESSURE, "memory.pressure": PRESSURE });
    await expect(unified().pressure()).rejects.toMatchObject({ details: { capability: "cgroup:io" } });
    await fill(v2, { "io.pressure": PRESSURE });
    expect((await unified().pressure()).io).toEqual({
      some: { avg10: 1.5, avg60: 0.2, avg300: 0, totalUs: 1234 },
      full: { avg10: 0, avg60: 0, avg300: 0, totalUs: 5 },
    });
  });

  test("processors are those that count", async () => {
    await expect(unified().cpuset()).rejects.toMatchObject({ details: { capability: "cgroup:cpuset" } });
    await fill(v2, { "cpuset.cpus.effective": "0-1\n", "cpuset.mems.effective": "0\n" });
    expect(await unified().cpuset()).toEqual({ cpus: "0-1", mems: "0" });
  });
});

test("hierarchies of their own are read and written where a controller has one", async () => {
  await fill(memoryV1, { "memory.usage_in_bytes": "8192\n", "memory.limit_in_bytes": "9223372036854771712\n" });
  await fill(pidsV1, { "pids.current": "3\n", "pids.max": "16\n" });
  const groups = new GroupResources({ v2: null, memoryV1, pidsV1 });
  const unknown = { cpuUsageUs: null, ioReadBytes: null, ioWriteBytes: null };
  expect(await groups.use()).toEqual({ ...unknown, memoryBytes: 8192, memoryMaxBytes: null, pids: 3, pidsMax: 16 });
  await groups.limit({ memoryMaxBytes: 4096, pidsMax: 20 });
  expect((await groups.use()).pidsMax).toBe(20);
  await expect(groups.limit({ ioWeight: 1 })).rejects.toMatchObject({ details: { capability: "cgroup:io" } });
});

test("memory of a process is that of this process and no other", async () => {
  const { pid } = process;
  const identity = { pid, startTicks: (await startTicks(pid)) ?? 0, bootId: await bootId() };
  const use = await memoryOf(identity);
  expect(use.rssKib).toBeGreaterThan(1000);
  expect(use.privateKib + use.sharedKib).toBe(use.rssKib);
  await expect(memoryOf({ ...identity, startTicks: 1 })).rejects.toMatchObject({ code: "SANDBOX_GONE" });
});
