// Directories of sandboxes: which names are taken, and modes that do not depend on the umask of whoever starts the agent.
import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { chmod, mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { makePassableDir, Places } from "./places.ts";

const removed: string[] = [];
const removeTree = async (path: string): Promise<void> => {
  removed.push(path);
};

let root: string;
let umask: number;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "fluxvm-places-"));
  umask = process.umask(0o077);
});

afterEach(async () => {
  process.umask(umask);
  await rm(root, { recursive: true, force: true });
});

async function mode(...names: string[]): Promise<number> {
  return (await stat(join(root, ...names))).mode & 0o777;
}

describe("passable directories", () => {
  test("are passable with those above them, whatever the umask is", async () => {
    await makePassableDir(join(root, "a/b/c"));
    expect(await Promise.all([mode("a"), mode("a/b"), mode("a/b/c"), mode()])).toEqual([0o711, 0o711, 0o711, 0o700]);
  });

  test("keep the mode that somebody gave them", async () => {
    await makePassableDir(join(root, "a"));
    await chmod(join(root, "a"), 0o755);
    await makePassableDir(join(root, "a"));
    expect(await mode("a")).toBe(0o755);
  });

  test("of an instance and of its socket", async () => {
    const places = new Places(root, join(root, "run"), removeTree);
    await places.makeInstanceDir("one");
    await places.ensureSocketDir("abcdefghij23");
    expect(await Promise.all([mode("one"), mode("run"), mode("run/sandboxes")])).toEqual([0o711, 0o711, 0o711]);
    expect(await mode("run/sandboxes/abcdefghij23")).toBe(0o700);
  });
});

test("names that could lead elsewhere are not turned into paths", () => {
  const places = new Places(root, join(root, "run"), removeTree);
  for (const name of ["", "..", "a/b", "a/../b", "one/dry-run-", "one/dry-run-0123456z", "a\n"]) {
    expect(() => places.instanceDir(name)).toThrow();
  }
  for (const name of ["", "..", "abcdefghij2", "abcdefghij234", "ABCDEFGHIJ23", "abcdefghij/3"]) {
    expect(() => places.socketDir(name)).toThrow();
  }
});

test("are removed by what can remove whatever a machine has made in them", async () => {
  const { releases } = new Places(root, join(root, "run"), removeTree);
  await releases["instance-directory"]?.({ kind: "instance-directory", name: "one", data: {} });
  await releases["socket-directory"]?.({ kind: "socket-directory", name: "abcdefghij23", data: {} });
  expect(removed).toEqual([join(root, "one"), join(root, "run/sandboxes/abcdefghij23")]);
});
