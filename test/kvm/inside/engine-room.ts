// Runs inside a KVM host: a machine on the engine whose host has no room for what its guest writes waits at that write, and its
// Linux finds nothing wrong once there is room.
import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdir, rm, statfs, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { until } from "../../harness/machine-station.ts";
import { outputOf } from "../../harness/program.ts";
import { EngineMachine, FOLDER } from "./engine-machine.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(600_000);
const WAIT_MS = 120_000;

const MIB = 1 << 20;
const HOST_MIB = 128;
/** What the host has room for when the guest begins to write, and what it writes. */
const [ROOM_BYTES, WRITTEN_BYTES] = [6 * MIB, 24 * MIB];
const PAUSES = 2;
/** Longer than it is between two tries. */
const STILL_MS = 3_000;
/** What does not have to be written can be read, also from the disk: from where nobody writes. */
const READING = "dd if=/dev/vda bs=64k skip=1600 count=16 2>/dev/null | sha256sum";
const TROUBLE = "dmesg | grep -E 'I/O error|EXT4-fs error|Aborting journal|Remounting|Call Trace' || true";

let machine: EngineMachine;
beforeAll(async () => {
  await mkdir(FOLDER, { recursive: true });
  await outputOf(["mount", "-t", "tmpfs", "-o", `size=${HOST_MIB}m,mode=755`, "tmpfs", FOLDER]);
  machine = await EngineMachine.boot();
});
afterAll(async () => {
  await machine?.[Symbol.asyncDispose]();
  await outputOf(["umount", FOLDER]);
});

async function waiting(): Promise<number> {
  const { blk_waiting_for_room } = { ...(await machine.do("metrics")) } as Record<string, unknown>;
  return Number(blk_waiting_for_room);
}

test("a write without room waits, nothing else does, and all of it is there once there is some", async () => {
  await machine.output(`head -c ${WRITTEN_BYTES} /dev/urandom >/run/written`);
  const [written, read] = [await machine.output("sha256sum </run/written"), await machine.output(READING)];
  const filler = join(FOLDER, "filler");
  const { bavail, bsize } = await statfs(FOLDER);
  await writeFile(filler, Buffer.alloc(bavail * bsize - ROOM_BYTES));
  const writing = machine.output("dd if=/run/written of=/root/written bs=1M conv=fsync");
  await until("it waits", async () => (await waiting()) > 0, WAIT_MS);
  for (let pause = 0; pause < PAUSES; pause += 1) {
    expect(await machine.do("pause")).toMatchObject({ lifecycle: "paused" });
    expect(await waiting()).toBeGreaterThan(0);
    expect(await machine.do("resume")).toMatchObject({ lifecycle: "running" });
    expect(await machine.output(READING)).toBe(read);
  }
  const refused = await machine.ask("snapshot_save", { path: machine.snapshot("snapshot") });
  expect(refused).toEqual({ status: "error", message: expect.stringContaining("No space left") });
  await Bun.sleep(STILL_MS);
  expect(await machine.output("echo here")).toBe("here\n");
  expect(Bun.peek.status(writing)).toBe("pending");
  expect(await waiting()).toBeGreaterThan(0);
  const beganMs = performance.now();
  await rm(filler);
  await writing;
  process.stdout.write(`room: the write ended ${Math.round(performance.now() - beganMs)} ms after there was some\n`);
  await until("nothing waits", async () => (await waiting()) === 0, WAIT_MS);
  // From the disk, not from what the guest remembers.
  expect(await machine.output("echo 3 >/proc/sys/vm/drop_caches; sha256sum </root/written")).toBe(written);
  await machine.output("echo more >/root/more; sync");
  expect(await machine.output("grep -o ' / ext4 r[ow]' /proc/mounts")).toBe(" / ext4 rw\n");
  expect(await machine.output(TROUBLE)).toBe("");
});
