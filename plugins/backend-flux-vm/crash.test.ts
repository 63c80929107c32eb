// An agent that is killed while it launches a machine: whatever it was doing, its rows are enough to end and remove all that
// it had made, and the next launch in the same place is like the first.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { constants } from "node:fs";
import { access, chmod, mkdtemp, readdir, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Backend } from "../../src/contracts/backend.ts";
import type { Resource } from "../../src/contracts/resource.ts";
import { makePlace } from "./testing/place.ts";

// A bound for a hang: each moment starts a program, and mostly a machine.
setDefaultTimeout(60_000);
const isRoot = process.getuid?.() === 0;
const UID = isRoot ? 1_999_999_005 : null;
const NAME = `fc${process.pid}`.padEnd(12, "a").slice(0, 12);
/** More than a launch has steps. */
const MOMENTS_MAX = 30;
const PROGRAM = join(import.meta.dir, "testing/launch-and-die.ts");
const hasKvm = await access("/dev/kvm", constants.R_OK | constants.W_OK).then(
  () => true,
  () => false,
);

let root: string;
let backend: Backend;
beforeAll(async () => {
  root = await mkdtemp(join(tmpdir(), "flux-vm-crash-"));
  await chmod(root, 0o711);
  backend = (await makePlace(root, NAME, UID)).backend;
});
afterAll(() => rm(root, { recursive: true, force: true }));

/** Whether it was killed at that moment; false: the launch has no so many steps. */
async function isKilledAt(moment: number): Promise<boolean> {
  await rm(join(root, "journal"), { force: true });
  const words = [process.execPath, PROGRAM, root, NAME, UID === null ? "" : String(UID), String(moment)];
  const child = Bun.spawn(words, { stdio: ["ignore", "ignore", "inherit"] });
  await child.exited;
  if (child.signalCode === null) expect(child.exitCode).toBe(0);
  return child.signalCode !== null;
}

async function rows(): Promise<Resource[]> {
  const lines = (await readFile(join(root, "journal"), "utf8")).trim().split("\n");
  const last = new Map<string, Resource & { data: unknown }>();
  for (const row of lines.map((line) => JSON.parse(line) as Resource)) last.set(row.kind, row);
  return [...last.values()].filter(({ data }) => data !== null);
}

async function leftOver(): Promise<string[]> {
  const mounts = (await readFile("/proc/self/mounts", "utf8")).split("\n").filter((line) => line.includes(root));
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const commands = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, "latin1").catch(() => "")));
  const groups = await Promise.all(
    ["/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"].map((mount) =>
      readdir(join(mount, "fluxvm.slice")).catch(() => []),
    ),
  );
  return [
    ...mounts,
    ...commands.filter((line) => line.includes(`${root}/sockets`)),
    ...groups.flat().filter((name) => name === NAME),
  ];
}

describe.skipIf(!hasKvm)("an agent that is killed at any step of a launch", () => {
  test("leaves rows that are enough to remove everything, and to launch again", async () => {
    let killed = 0;
    for (let moment = 1; moment <= MOMENTS_MAX; moment += 1) {
      const wasKilled = await isKilledAt(moment);
      for (const row of (await rows()).toReversed()) await backend.releases[row.kind]?.(row);
      // A helper that waits for its configuration ends with its agent, and takes a moment for that.
      for (let tries = 0; tries < 200 && (await leftOver()).length > 0; tries += 1) await Bun.sleep(10);
      expect([moment, await leftOver()]).toEqual([moment, []]);
      if (!wasKilled) break;
      killed = moment;
    }
    // Group, memory and process: each before and after it is made; an identity; and memory given back.
    expect(killed).toBe(isRoot ? 9 : 3);
  });
});
