import { describe, expect, test } from "bun:test";
import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../../config/limits.ts";
import type { Changes } from "../operations.ts";
import type { FakeFile, Files } from "../testing/fake-guest.ts";
import { admin, World } from "../testing/world.ts";
import { isUnder, listingPaths } from "./paths.ts";

const text = (path: Uint8Array): string => Buffer.from(path).toString("latin1");
const file = (content: string, fields: Partial<FakeFile> = {}): FakeFile => ({
  content: Buffer.from(content),
  mode: 0o644,
  ...fields,
});

const lists = ({ added, modified, deleted, unchanged, other }: Changes) => ({
  added: added.map(text),
  modified: modified.map(text),
  deleted: deleted.map(text),
  unchanged,
  other: other.map(({ path, change, kind }) => `${change} ${kind} ${text(path)}`),
});

async function setUp(world: World) {
  const core = world.core();
  await core.operations.create(admin, { id: "one", backend: "fake", backendRequest: {} });
  const files = world.host.volumes.get("one") as Files;
  const guest = [...world.host.processes.values()][0]?.channel;
  if (guest === undefined) throw new Error("no guest");
  return { ...core.operations, files, guest, core };
}

describe("paths", () => {
  test("are canonical, sorted and single", () => {
    expect(listingPaths(["/b/", "/a//./c", "/b", "/"]).map(text)).toEqual(["/", "/a/c", "/b"]);
  });

  test.each(["a", "", "/a/../b", "/..", "/a\nb", "/a\0", "/\u007f", "/\ud800"])("%p is refused", (path) => {
    expect(() => listingPaths([path])).toThrow();
  });

  test("none, too many and too long", () => {
    expect(() => listingPaths([])).toThrow();
    expect(() =>
      listingPaths(Array.from({ length: limits.manifestPathsMax + 1 }, (_, index) => `/${index}`)),
    ).toThrow();
    expect(listingPaths([`/${"x".repeat(4095)}`])).toHaveLength(1);
    expect(() => listingPaths([`/${"x".repeat(4096)}`])).toThrow();
  });

  test("what lies under what", () => {
    const under = (path: string, root: string) => isUnder(Buffer.from(path), [Buffer.from(root)]);
    expect(under("/a/b", "/a")).toBe(true);
    expect(under("/a", "/a")).toBe(true);
    expect(under("/ab", "/a")).toBe(false);
    expect(under("/ab", "/")).toBe(true);
  });
});

describe("baseline and changes", () => {
  test("tell added, modified, deleted and unchanged", async () => {
    await using world = await World.create();
    const { files, baseline, changes } = await setUp(world);
    for (const name of ["/same", "/edited", "/gone", "/moved"]) files.set(name, file(name));
    expect(await baseline(admin, "one", ["/"])).toMatchObject({ files: 4, mode: "sha256" });
    files.set("/edited", file("/EDITED"));
    files.delete("/gone");
    files.delete("/moved");
    files.set("/moved 2", file("/moved"));
    files.set("/\xff", file("odd"));
    const reply = await changes(admin, "one");
    expect(lists(reply)).toEqual({
      added: ["/moved 2", "/\xff"],
      modified: ["/edited"],
      deleted: ["/gone", "/moved"],
      unchanged: 1,
      other: [],
    });
    expect(reply).toMatchObject({ mode: "sha256", baselineTakenAtUnix: Math.floor(world.nowUnixMs / 1000) });
    expect(reply.paths.map(text)).toEqual(["/"]);
  });

  test("only regular files are in the three lists", async () => {
    await using world = await World.create();
    const { files, baseline, changes } = await setUp(world);
    files.set("/link", file("target", { kind: "symlink" }));
    files.set("/pipe", file("", { kind: "other" }));
    files.set("/becomes-link", file("x"));
    files.set("/becomes-file", file("t", { kind: "symlink" }));
    files.set("/mode", file("x"));
    files.set("/owner", file("x"));
    await baseline(admin, "one", ["/"]);
    files.set("/link", file("elsewhere", { kind: "symlink" }));
    files.delete("/pipe");
    files.set("/dir", file("", { kind: "directory", mode: 0o755 }));
    files.set("/becomes-link", file("t", { kind: "symlink" }));
    files.set("/becomes-file", file("x"));
    files.set("/mode", file("x", { mode: 0o600 }));
    files.set("/owner", file("x", { uid: 2 }));
    expect(lists(await changes(admin, "one"))).toEqual({
      added: ["/becomes-file"],
      modified: [],
      deleted: ["/becomes-link"],
      unchanged: 2,
      other: [
        "type file /becomes-file",
        "type symlink /becomes-link",
        "added directory /dir",
        "modified symlink /link",
        "mode file /mode",
        "owner file /owner",
        "deleted other /pipe",
      ],
    });
  });

  test("unreadable counts only when readability changes", async () => {
    await using world = await World.create();
    const { files, baseline, changes } = await setUp(world);
    files.set("/still", file("a", { unreadable: true }));
    files.set("/opened", file("b", { unreadable: true }));
    await baseline(admin, "one", ["/"]);
    files.set("/still", file("changed", { unreadable: true }));
    files.set("/opened", file("b"));
    expect(lists(await changes(admin, "one"))).toMatchObject({ modified: ["/opened"], unchanged: 1 });
  });

  test("can be narrowed to paths of the baseline, and to no others", async () => {
    await using world = await World.create();
    const { files, baseline, changes, guest } = await setUp(world);
    files.set("/a/x", file("1"));
    files.set("/b/x", file("1"));
    await baseline(admin, "one", ["/b", "/a"]);
    files.delete("/a/x");
    files.delete("/b/x");
    for (const whole of [false, true]) {
      if (whole) guest.listings.clear();
      const reply = await changes(admin, "one", ["/b"]);
      expect(lists(reply).deleted).toEqual(["/b/x"]);
      expect(reply.paths.map(text)).toEqual(["/b"]);
    }
    expect((await changes(admin, "one")).paths.map(text)).toEqual(["/a", "/b"]);
    await expect(changes(admin, "one", ["/b/c"])).rejects.toMatchObject({ code: "PATH_INVALID" });
    await expect(changes(admin, "one", [])).rejects.toMatchObject({ code: "PATHS_REQUIRED" });
  });

  test("a path that is gone holds nothing any more, and the others are still compared", async () => {
    await using world = await World.create();
    const { files, baseline, changes, guest } = await setUp(world);
    for (const name of ["/a/x", "/a/y", "/b/same", "/b/edited"]) files.set(name, file("1"));
    await baseline(admin, "one", ["/a", "/b"]);
    for (const name of ["/a/x", "/a/y"]) files.delete(name);
    guest.absent.add("/a");
    files.set("/b/edited", file("2"));
    expect(lists(await changes(admin, "one"))).toEqual({
      added: [],
      modified: ["/b/edited"],
      deleted: ["/a/x", "/a/y"],
      unchanged: 1,
      other: [],
    });
    expect(lists(await changes(admin, "one", ["/a"]))).toMatchObject({ deleted: ["/a/x", "/a/y"], unchanged: 0 });
    await expect(baseline(admin, "one", ["/a"])).rejects.toMatchObject({ code: "FILE_NOT_FOUND" });
    expect(lists(await changes(admin, "one")).deleted).toEqual(["/a/x", "/a/y"]);
  });

  test("a missing, a corrupt and another mode's baseline are told apart", async () => {
    await using world = await World.create();
    const { baseline, changes, guest } = await setUp(world);
    await expect(changes(admin, "one")).rejects.toMatchObject({ code: "BASELINE_MISSING" });
    await baseline(admin, "one", ["/"]);
    guest.mode = "stat";
    await expect(changes(admin, "one")).rejects.toMatchObject({ code: "BASELINE_MODE_CHANGED" });
    await writeFile(join(world.instancesDir, "one/sandbox-baseline.json"), "{}");
    await expect(changes(admin, "one")).rejects.toMatchObject({ code: "BASELINE_CORRUPT" });
    await baseline(admin, "one", ["/"]);
    expect((await changes(admin, "one")).mode).toBe("stat");
  });

  test("a failed baseline leaves the earlier one and no temporary file", async () => {
    await using world = await World.create();
    const { baseline, changes, guest, files } = await setUp(world);
    files.set("/a", file("1"));
    await baseline(admin, "one", ["/"]);
    const list = guest.manifest.bind(guest);
    guest.manifest = async (request, sink) => {
      await list(request, sink);
      throw new Error("the walk failed");
    };
    await expect(baseline(admin, "one", ["/"])).rejects.toThrow("the walk failed");
    guest.manifest = list;
    expect(lists(await changes(admin, "one")).unchanged).toBe(1);
    expect((await readdir(join(world.instancesDir, "one"))).sort()).toEqual(["files", "sandbox-baseline.json"]);
  });

  test("survives a restart of the agent and goes with the sandbox", async () => {
    await using world = await World.create();
    const { baseline, files } = await setUp(world);
    await baseline(admin, "one", ["/"]);
    files.set("/new", file("1"));
    const next = world.core();
    await next.reconcile();
    expect(lists(await next.operations.changes(admin, "one")).added).toEqual(["/new"]);
    await next.operations.remove(admin, "one");
    await next.operations.create(admin, { id: "one", backend: "fake", backendRequest: {} });
    await expect(next.operations.changes(admin, "one")).rejects.toMatchObject({ code: "BASELINE_MISSING" });
  });

  test("a guest that holds the listing answers with a difference, with the same result", async () => {
    await using world = await World.create();
    const { baseline, changes, files, guest } = await setUp(world);
    const random = seededRandom(7);
    const name = () => `/${["a", "b", "c/d", "é", "\xff"][Math.floor(random() * 5)]}${Math.floor(random() * 12)}`;
    for (let round = 0; round < 60; round += 1) {
      edit(files, random, name);
      await baseline(admin, "one", ["/"]);
      const before = new Map(files);
      edit(files, random, name);
      const full = guest.fullListings;
      const delta = lists(await changes(admin, "one"));
      expect(guest.fullListings).toBe(full);
      guest.listings.clear();
      const whole = lists(await changes(admin, "one"));
      expect(guest.fullListings).toBe(full + 1);
      expect(delta).toEqual(whole);
      expect(whole).toMatchObject(reference(before, files));
    }
  });

  test("concurrent baselines are taken one after the other", async () => {
    await using world = await World.create();
    const { baseline, changes, files } = await setUp(world);
    files.set("/a", file("1"));
    await Promise.all([1, 2, 3, 4, 5, 6].map(() => baseline(admin, "one", ["/"])));
    expect((await changes(admin, "one")).unchanged).toBe(1);
    expect((await readdir(join(world.instancesDir, "one"))).sort()).toEqual(["files", "sandbox-baseline.json"]);
  });

  test("at most four listings of a sandbox run at a time", async () => {
    await using world = await World.create();
    const { baseline, changes, guest } = await setUp(world);
    await baseline(admin, "one", ["/"]);
    const gate = Promise.withResolvers<void>();
    const list = guest.manifest.bind(guest);
    guest.manifest = async (request, sink) => {
      await gate.promise;
      return await list(request, sink);
    };
    const running = Array.from({ length: limits.listingsAtOnceMax }, () => changes(admin, "one"));
    await expect(baseline(admin, "one", ["/"])).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
    gate.resolve();
    await Promise.all(running);
  });
});

/** The three lists computed in the simplest way there is. */
function reference(before: Files, now: Files) {
  const sort = (names: string[]) =>
    names.sort((a, b) => Buffer.compare(Buffer.from(a, "latin1"), Buffer.from(b, "latin1")));
  const same = (name: string) =>
    Buffer.compare(before.get(name)?.content ?? Buffer.of(), now.get(name)?.content ?? Buffer.of()) === 0;
  return {
    added: sort([...now.keys()].filter((name) => !before.has(name))),
    modified: sort([...now.keys()].filter((name) => before.has(name) && !same(name))),
    deleted: sort([...before.keys()].filter((name) => !now.has(name))),
    unchanged: [...now.keys()].filter((name) => before.has(name) && same(name)).length,
  };
}

function edit(files: Files, random: () => number, name: () => string): void {
  for (let step = 0; step < 8; step += 1) {
    if (random() < 0.35) files.delete(name());
    else files.set(name(), file(String(Math.floor(random() * 3)), { mode: random() < 0.2 ? 0o600 : 0o644 }));
  }
}

function seededRandom(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state * 1_103_515_245 + 12_345) % 2_147_483_648;
    return state / 2_147_483_648;
  };
}

describe("dry-run", () => {
  test("tells what a command would change and changes nothing", async () => {
    await using world = await World.create();
    const { dryRun, files } = await setUp(world);
    files.set("/kept", file("1"));
    files.set("/gone", file("1"));
    const held = await world.holdings();
    const reply = await dryRun(admin, "one", { command: "write /new x;write /kept 2;rm /gone;exit 4" });
    expect(lists(reply.changes)).toEqual({
      added: ["/new"],
      modified: ["/kept"],
      deleted: ["/gone"],
      unchanged: 0,
      other: [],
    });
    expect(reply).toMatchObject({ revertedVia: "workspace-copy", exec: { exitCode: 4 } });
    expect([...files.keys()]).toEqual(["/kept", "/gone"]);
    expect(await world.holdings()).toEqual(held);
    expect(await readdir(join(world.instancesDir, "one"))).toEqual(["files"]);
  });

  test("only paths that were asked for are compared", async () => {
    await using world = await World.create();
    const { dryRun } = await setUp(world);
    const reply = await dryRun(admin, "one", { command: "write /a/x 1;write /b/x 1", paths: ["/b"] });
    expect(lists(reply.changes).added).toEqual(["/b/x"]);
    await expect(dryRun(admin, "one", { command: "x", paths: ["b"] })).rejects.toMatchObject({ code: "PATH_INVALID" });
    await expect(dryRun(admin, "one", { command: "x", paths: [] })).rejects.toMatchObject({ code: "PATHS_REQUIRED" });
  });

  test("one at a time, while ordinary commands go on", async () => {
    await using world = await World.create();
    const { dryRun, process } = await setUp(world);
    const first = dryRun(admin, "one", { command: "sleep 20" });
    await expect(dryRun(admin, "one", { command: "exit 0" })).rejects.toMatchObject({ code: "DRY_RUN_BUSY" });
    await process(admin, "one", { command: "exit 0" });
    await first;
    await dryRun(admin, "one", { command: "exit 0" });
  });

  for (const fault of ["clone", "launch", "channel"] as const) {
    test(`a failing ${fault} leaves nothing behind`, async () => {
      await using world = await World.create();
      const { dryRun } = await setUp(world);
      const held = await world.holdings();
      world.host.faults.add(fault);
      await expect(dryRun(admin, "one", { command: "exit 0" })).rejects.toBeDefined();
      expect(await world.holdings()).toEqual(held);
    });
  }

  test("a copy that ends in the middle is an error, and the sandbox goes on", async () => {
    await using world = await World.create();
    const { dryRun, ping } = await setUp(world);
    const held = await world.holdings();
    await expect(dryRun(admin, "one", { command: "die" })).rejects.toMatchObject({
      code: "SANDBOX_GONE",
      message: "the copy of the dry-run ended: the command ended the sandbox",
    });
    expect(await world.holdings()).toEqual(held);
    await ping(admin, "one");
  });

  test("a workspace over its cap is refused before anything is copied", async () => {
    await using world = await World.create();
    const { dryRun, files } = await setUp(world);
    files.set("/big", file("x".repeat((1 << 20) + 1)));
    await expect(dryRun(admin, "one", { command: "x" })).rejects.toMatchObject({ code: "WORKSPACE_FULL" });
  });

  test("stop and remove cut it and discard the copy", async () => {
    for (const verb of ["stop", "remove"] as const) {
      await using world = await World.create();
      const { dryRun, core } = await setUp(world);
      const running = dryRun(admin, "one", { command: "sleep 30;exit 0" });
      await Bun.sleep(10);
      await Promise.all([
        core.operations[verb](admin, "one"),
        expect(running).rejects.toMatchObject({ code: "SANDBOX_GONE" }),
      ]);
      const held = await world.holdings();
      expect(held.processes).toEqual([]);
      expect(held.volumes).toEqual(verb === "stop" ? ["one"] : []);
    }
  });

  test("a copy that cannot be thrown away is told, kept in the journal and removed with the sandbox", async () => {
    await using world = await World.create();
    const { dryRun, core } = await setUp(world);
    world.host.faults.add("volume");
    await expect(dryRun(admin, "one", { command: "exit 0" })).rejects.toMatchObject({ code: "RELEASE_FAILED" });
    expect((await world.holdings()).volumes).toHaveLength(2);
    world.host.faults.clear();
    await core.operations.remove(admin, "one");
    expect((await world.holdings()).volumes).toEqual([]);
  });
});
