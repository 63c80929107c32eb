// The guest's memory as a file: of its size, on a mount that goes when it is released, and stays for whoever has it open.
import { afterAll, describe, expect, test } from "bun:test";
import { mkdtemp, open, readdir, readFile, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Resource, ResourceScope } from "../../src/contracts/resource.ts";
import { makeMemory, MEMORY, releaseMemory } from "./memory.ts";

const isRoot = process.getuid?.() === 0;
const MIB = 1024 * 1024;
const directory = await mkdtemp(join(tmpdir(), "memory-"));
afterAll(() => rm(directory, { recursive: true }));

function journal(): ResourceScope & { readonly rows: Resource[] } {
  const rows: Resource[] = [];
  return {
    rows,
    acquire: async (resource, make) => {
      rows.push(resource);
      return await make();
    },
    update: async () => undefined,
    release: async () => undefined,
    held: () => rows,
  };
}

describe.skipIf(!isRoot)("memory of a guest", () => {
  test("has its size, is nobody else's, and outlives its mount for whoever has it open", async () => {
    const resources = journal();
    const place = join(directory, "one");
    const path = await makeMemory(resources, "vm", place, 3);
    const row = { kind: MEMORY, name: "vm", data: { directory: place } };
    expect(resources.rows).toEqual([row]);
    const { size, mode } = await stat(path);
    expect([size, mode & 0o777]).toEqual([3 * MIB, 0o600]);
    expect(await readFile("/proc/self/mounts", "utf8")).toMatch(new RegExp(`${place} tmpfs \\S*nosuid,nodev,noexec`));
    const file = await open(path, "r+");
    await releaseMemory(row);
    expect(await readdir(directory)).toEqual([]);
    expect(await readFile("/proc/self/mounts", "utf8")).not.toContain(place);
    await file.write(Buffer.alloc(MIB, 7), 0, MIB, 2 * MIB);
    const { buffer } = await file.read(Buffer.alloc(1), 0, 1, 3 * MIB - 1);
    expect(buffer[0]).toBe(7);
    await file.close();
    await releaseMemory(row);
  });

  test("that was not made, or is half made, is released all the same", async () => {
    const place = join(directory, "two");
    await releaseMemory({ kind: MEMORY, name: "vm", data: { directory: place } });
    await expect(makeMemory(journal(), "vm", join(place, "below"), 2)).rejects.toThrow("ENOENT");
    await releaseMemory({ kind: MEMORY, name: "vm", data: { directory: join(place, "below") } });
    await expect(releaseMemory({ kind: MEMORY, name: "vm", data: {} })).rejects.toMatchObject({ code: "INTERNAL" });
  });
});
