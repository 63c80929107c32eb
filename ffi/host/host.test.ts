// The safe nouns of the host library against the real kernel.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { codeOf } from "../testing.ts";
import { removeControlGroup } from "./control-groups.ts";
import { allocateFile, FileLock, fileSystemFacts, syncFile, syncFileSystem } from "./files.ts";
import { kvmSpeed, probeKvm } from "./kvm.ts";
import { landlockAbi } from "./landlock.ts";
import { processRuns, signalProcess } from "./processes.ts";
import { copyTree, measureTree, removeTree } from "./trees.ts";
import { CID_MAX, CID_MIN, cidIsFree, connectVsock } from "./vsock.ts";

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), "fluxvm-host-"));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

function startTicks(pid: number): number {
  const stat = readFileSync(`/proc/${pid}/stat`, "latin1");
  return Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[19]);
}

test("a lock excludes, also within one process, until it is released", async () => {
  const path = join(directory, "lock");
  const first = await FileLock.take(path);
  expect(first).not.toBeNull();
  expect(await FileLock.take(path)).toBeNull();

  await first?.release();
  await using second = await FileLock.take(path);
  expect(second).not.toBeNull();
  expect(statSync(path).mode & 0o777).toBe(0o600);
  expect(first?.release()).rejects.toThrow("released before");
});

test("a lock goes with its process, even when that is killed", async () => {
  const path = join(directory, "lock");
  const script = join(directory, "hold.ts");
  const files = JSON.stringify(new URL("./files.ts", import.meta.url).pathname);
  await Bun.write(
    script,
    `import { FileLock } from ${files};
     console.log((await FileLock.take(${JSON.stringify(path)})) === null ? "refused" : "held");
     setInterval(() => {}, 1000);`,
  );
  await using holder = Bun.spawn([process.execPath, script], { stdout: "pipe" });
  const { value } = await holder.stdout.getReader().read();
  expect(new TextDecoder().decode(value)).toBe("held\n");
  expect(await FileLock.take(path)).toBeNull();

  holder.kill("SIGKILL");
  await holder.exited;
  await using lock = await FileLock.take(path);
  expect(lock).not.toBeNull();
});

test("an allocation reserves its blocks, or leaves nothing", async () => {
  const path = join(directory, "image");
  await allocateFile(path, 8 * 1024 * 1024);
  expect(statSync(path).blocks * 512).toBeGreaterThanOrEqual(8 * 1024 * 1024);
  await syncFile(path);
  await syncFileSystem(path);
  expect(await codeOf(allocateFile(path, 1))).toBe("EEXIST");

  const { availableBytes } = await fileSystemFacts(directory);
  expect(await codeOf(allocateFile(join(directory, "huge"), availableBytes * 4))).toBe("ENOSPC");
  expect(existsSync(join(directory, "huge"))).toBe(false);
});

test("a tree is copied, measured and removed", async () => {
  const source = join(directory, "source");
  mkdirSync(join(source, "a"), { recursive: true });
  writeFileSync(join(source, "a", "file"), "x".repeat(100_000));
  const target = join(directory, "target");

  const copied = await copyTree({ source, target, bytesMax: 1_000_000, entriesMax: 10 });
  expect(copied).toMatchObject({ entries: 2, skipped: 0 });
  expect((await measureTree(target, 10)).bytes).toBeGreaterThanOrEqual(100_000);
  expect(await removeTree(target)).toEqual({ entries: 2 });
  expect(await removeTree(target)).toEqual({ entries: 0 });
  expect(await codeOf(copyTree({ source, target, bytesMax: 10, entriesMax: 10 }))).toBe("EDQUOT");
});

test("a control group that does not empty is reported, one that is gone is success", async () => {
  mkdirSync(join(directory, "group/child"), { recursive: true });
  expect(await codeOf(removeControlGroup(join(directory, "group"), 20))).toBe("ENOTEMPTY");
  await removeControlGroup(join(directory, "group/child"), 0);
  await removeControlGroup(join(directory, "group"), 0);
  await removeControlGroup(join(directory, "group"), 0);
});

test("a process is named by pid and start time", async () => {
  await using child = Bun.spawn(["sleep", "60"]);
  const key = { pid: child.pid, startTicks: startTicks(child.pid) };
  expect(processRuns(key)).toBe(true);
  expect(processRuns({ ...key, startTicks: key.startTicks + 1 })).toBe(false);
  expect(signalProcess({ ...key, startTicks: key.startTicks + 1 }, 9)).toBe(false);
  expect(child.killed).toBe(false);

  expect(signalProcess(key, 9)).toBe(true);
  await child.exited;
  expect(processRuns(key)).toBe(false);
  expect(signalProcess(key, 9)).toBe(false);
  expect(() => processRuns({ pid: 0, startTicks: 1 })).toThrow(RangeError);
});

test("facts about KVM and Landlock are numbers or a named error", () => {
  expect(landlockAbi()).toBeGreaterThanOrEqual(0);
  if (existsSync("/dev/kvm")) expect(probeKvm().apiVersion).toBe(12);
  else expect(() => probeKvm()).toThrow(/ENOENT/);
});

test("the speed of a guest is measured, or why it cannot be is named", async () => {
  // Even where every privileged instruction is emulated, a guest gets through a hundred thousand a second.
  if (existsSync("/dev/kvm")) expect(await kvmSpeed()).toBeGreaterThan(100_000);
  else await expect(kvmSpeed()).rejects.toThrow(/ENOENT/);
});

test("what cannot be a machine is not connected to", () => {
  const connect = (cid: number, port: number) => connectVsock(cid, port, { data: () => undefined });

  for (const cid of [-1, 0, CID_MIN - 1, 3.5, CID_MAX + 1]) expect(connect(cid, 1)).rejects.toThrow(RangeError);
  expect(connect(CID_MIN, -1)).rejects.toThrow(RangeError);
  expect(cidIsFree(CID_MIN - 1)).rejects.toThrow(RangeError);
});

const hasVsock = existsSync("/dev/vhost-vsock");

test.skipIf(!hasVsock)("a machine that is not there is told at once (needs vhost-vsock)", async () => {
  expect(await cidIsFree(CID_MAX)).toBe(true);
  expect(await codeOf(connectVsock(CID_MAX, 1, { data: () => undefined }))).toBe("ENODEV");
});
