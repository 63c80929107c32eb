// What is special about plain directories: watched bounds, copies of hostile content, and work without root.
import { afterEach, beforeEach, expect, test } from "bun:test";
import {
  chmodSync,
  chownSync,
  existsSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { ConformanceJournal } from "../../src/conformance/journal.ts";
import type { Overshoot } from "../../src/contracts/storage.ts";
import { codeOf } from "../../src/errors/testing.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";
import { DirectoryStorage } from "./driver.ts";
import { options } from "./options.ts";
import { probe } from "./capabilities.ts";

const MIB = 1024 * 1024;
const NOBODY = 65_534;
const ROOT = process.geteuid?.() === 0;
const ME = { uid: process.geteuid?.() ?? 0, gid: process.getegid?.() ?? 0 };

let root: string;
let storage: DirectoryStorage;
let journal: ConformanceJournal;
beforeEach(async () => {
  root = mkdtempSync(join(tmpdir(), "fluxvm-directory-"));
  storage = await open({});
  journal = new ConformanceJournal(storage.releases);
});
afterEach(async () => {
  await journal.releaseAll();
  await storage.close();
  rmSync(root, { recursive: true });
});

async function open(given: object): Promise<DirectoryStorage> {
  const host = hostFacts(root);
  mkdirSync(host.instancesDir, { recursive: true });
  return new DirectoryStorage({
    host,
    options: options.parse(given),
    report: await probe(),
    log: silentLog,
    guest: noGuest,
  });
}

function request(name: string, capMib = 64) {
  return { name, capBytes: capMib * MIB, ...ME };
}

test("a volume beyond its bound is reported, and only while somebody listens", async () => {
  const [over, within] = [
    await storage.createVolume(request("over", 8), journal),
    await storage.createVolume(request("within", 8), journal),
  ];
  writeFileSync(join(within.path, "some"), new Uint8Array(4 * MIB).fill(1));
  const { promise, resolve } = Promise.withResolvers<Overshoot>();
  const found: string[] = [];
  const stop = storage.watchOvershoot((overshoot) => {
    found.push(overshoot.volume.name);
    resolve(overshoot);
  });

  writeFileSync(join(over.path, "big"), new Uint8Array(24 * MIB).fill(1));
  const overshoot = await promise;
  stop();

  expect(overshoot.volume).toEqual(over);
  expect(overshoot.bytes).toBeGreaterThan(24 * MIB);
  expect(new Set(found)).toEqual(new Set(["over"]));
});

test("a writer's overshoot is noticed within a few intervals", async () => {
  const volume = await storage.createVolume(request("a", 8), journal);
  const { promise, resolve } = Promise.withResolvers<number>();
  const stop = storage.watchOvershoot(() => resolve(performance.now()));
  await Bun.sleep(300);

  const started = performance.now();
  writeFileSync(join(volume.path, "big"), new Uint8Array(32 * MIB).fill(1));
  const noticedMs = (await promise) - started;
  stop();

  expect(noticedMs).toBeLessThan(3_000);
});

test("a volume with too many entries to count is beyond its bound", async () => {
  await storage.close();
  storage = await open({ entries_max: 3, watch_interval_ms: 10 });
  journal = new ConformanceJournal(storage.releases);
  const volume = await storage.createVolume(request("a"), journal);
  const { promise, resolve } = Promise.withResolvers<Overshoot>();
  const stop = storage.watchOvershoot(resolve);
  for (const name of ["1", "2", "3", "4"]) writeFileSync(join(volume.path, name), "");

  expect((await promise).bytes).toBeNull();
  stop();
  expect(await codeOf(storage.usage(volume))).toBe("LISTING_TOO_LARGE");
  expect(await codeOf(storage.cloneVolume(volume, request("a.clone"), journal))).toBe("LISTING_TOO_LARGE");
});

test("a clone of a volume that holds more than its bound is refused, and what it made is released", async () => {
  const volume = await storage.createVolume(request("a", 1), journal);
  writeFileSync(join(volume.path, "big"), new Uint8Array(2 * MIB).fill(1));

  expect(await codeOf(storage.cloneVolume(volume, request("a.clone", 1), journal))).toBe("WORKSPACE_FULL");
  await journal.release("directory-volume", "a.clone");
  expect(existsSync(join(root, "state/instances/a/files.clone"))).toBe(false);
  expect(existsSync(join(root, "state/instances/a/volume.clone.json"))).toBe(false);
});

test("hard links stay hard links, so a clone is not larger than its source", async () => {
  const volume = await storage.createVolume(request("a", 8), journal);
  writeFileSync(join(volume.path, "big"), new Uint8Array(4 * MIB).fill(1));
  for (let index = 0; index < 50; index += 1) linkSync(join(volume.path, "big"), join(volume.path, `name${index}`));

  const clone = await storage.cloneVolume(volume, request("a.clone", 8), journal);
  expect((await storage.usage(clone)).bytes).toBeLessThan(6 * MIB);
  expect(statSync(join(clone.path, "name7")).nlink).toBe(51);
});

test("a link in the place of a volume is neither followed nor taken for it", async () => {
  const outside = join(root, "outside");
  mkdirSync(outside);
  writeFileSync(join(outside, "kept"), "kept");
  mkdirSync(join(root, "state/instances/a"));
  symlinkSync(outside, join(root, "state/instances/a/files"));
  writeFileSync(join(root, "state/instances/a/volume.json"), '{"version":1,"cap_bytes":1000}');

  expect(await storage.openVolume("a")).toBeNull();
  expect(await codeOf(storage.createVolume(request("a"), journal))).toBe("SANDBOX_EXISTS");
  expect(journal.held()).toEqual([]);
  expect(readFileSync(join(outside, "kept"), "utf8")).toBe("kept");
});

test("a damaged record is reported, not taken for a volume without a bound", async () => {
  await storage.createVolume(request("a"), journal);
  writeFileSync(join(root, "state/instances/a/volume.json"), '{"version":1}');

  expect(await codeOf(storage.openVolume("a"))).toBe("STATE_UNAVAILABLE");
});

test.skipIf(!ROOT)(
  "an ordinary user can clone, measure and remove what its sandbox locked (needs root to become one)",
  async () => {
    const state = join(root, "user");
    mkdirSync(state);
    chownSync(state, NOBODY, NOBODY);
    chmodSync(root, 0o755);
    const script = join(state, "script.ts");
    const at = (path: string) => JSON.stringify(new URL(path, import.meta.url).pathname);
    await Bun.write(
      script,
      `import { chmodSync, mkdirSync, statSync, writeFileSync, readFileSync, existsSync } from "node:fs";
     import { DirectoryStorage } from ${at("./driver.ts")};
     import { options } from ${at("./options.ts")};
     import { ConformanceJournal } from ${at("../../src/conformance/journal.ts")};
     import { hostFacts, noGuest, silentLog } from ${at("../../src/registry/testing.ts")};
     const host = hostFacts(${JSON.stringify(state)});
     mkdirSync(host.instancesDir, { recursive: true });
     const storage = new DirectoryStorage({ host, options: options.parse({}), log: silentLog, guest: noGuest, report: null as never });
     const journal = new ConformanceJournal(storage.releases);
     const request = { capBytes: 1 << 26, uid: process.geteuid!(), gid: process.getegid!() };
     const volume = await storage.createVolume({ ...request, name: "a" }, journal);
     mkdirSync(volume.path + "/hidden/deeper", { recursive: true });
     writeFileSync(volume.path + "/hidden/deeper/file", new Uint8Array(3 << 20).fill(1));
     writeFileSync(volume.path + "/hidden/closed", "closed");
     for (const [path, mode] of [["/hidden/closed", 0], ["/hidden/deeper", 0o300], ["/hidden", 0]] as const) chmodSync(volume.path + path, mode);
     const usage = (await storage.usage(volume)).bytes;
     const clone = await storage.cloneVolume(volume, { ...request, name: "a.clone" }, journal);
     const modes = [volume, clone].map(({ path }) => (statSync(path + "/hidden").mode & 0o777).toString(8));
     chmodSync(clone.path + "/hidden", 0o700);
     const closed = (statSync(clone.path + "/hidden/closed").mode & 0o777).toString(8);
     chmodSync(clone.path + "/hidden/closed", 0o400);
     const text = readFileSync(clone.path + "/hidden/closed", "utf8");
     chmodSync(clone.path + "/hidden", 0);
     await journal.releaseAll();
     console.log(JSON.stringify({ usage: usage >= 3 << 20, modes, closed, text, left: existsSync(volume.path) || existsSync(clone.path) }));`,
    );
    const child = Bun.spawn([process.execPath, script], {
      uid: NOBODY,
      gid: NOBODY,
      cwd: "/",
      env: { HOME: state },
      stdout: "pipe",
      stderr: "pipe",
    });
    const [output, errors] = await Promise.all([new Response(child.stdout).text(), new Response(child.stderr).text()]);

    expect(errors).toBe("");
    expect(JSON.parse(output)).toEqual({ usage: true, modes: ["0", "0"], closed: "0", text: "closed", left: false });
  },
);

test.skipIf(!ROOT)(
  "volumes of a root agent belong to the sandbox's user and keep their owner when cloned (needs root)",
  async () => {
    const owned = { ...request("a"), uid: 200_321, gid: 200_321 };
    const volume = await storage.createVolume(owned, journal);
    writeFileSync(join(volume.path, "file"), "x");
    chownSync(join(volume.path, "file"), 200_321, 200_321);
    chmodSync(join(volume.path, "file"), 0o4751);
    const clone = await storage.cloneVolume(volume, { ...owned, name: "a.clone" }, journal);

    const [directory, file] = [lstatSync(clone.path), lstatSync(join(clone.path, "file"))];
    expect([directory.uid, directory.gid, directory.mode & 0o777]).toEqual([200_321, 200_321, 0o700]);
    expect([file.uid, file.mode & 0o7777]).toEqual([200_321, 0o4751]);
  },
);
