// Runs inside a KVM host: machines on the engine are paused, snapshot, restored and killed while they check their own memory
// and disk.
import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile, rm } from "node:fs/promises";
import { until } from "../../harness/machine-station.ts";
import { outputOf } from "../../harness/program.ts";
import { type DiskKind, EngineMachine } from "./engine-machine.ts";

// Bounds for a hang: this is emulated.
setDefaultTimeout(1_800_000);

const isFull = process.env.FLUXVM_TEST_FULL === "1";
const PAUSES = isFull ? 20 : 4;
const CYCLES = isFull ? 20 : 1;
const RESTORES = 3;
const KINDS: readonly DiskKind[] = isFull ? ["layer", "raw"] : ["layer"];
const CRASHES = (["layer", "raw"] as const).flatMap((kind) =>
  Array.from({ length: isFull ? 5 : 1 }, (_, crash) => [kind, crash] as const),
);
const PAUSE_MS = 300;
const MEMORY_MIB = 2;
const DISK_MIB = 1;
const JOURNAL_PORT = 7_001;
/** Files of a journal that were synced when the engine is killed. */
const JOURNAL_FILES = 25;
const WAIT_MS = 120_000;
const TROUBLE =
  "dmesg | grep -E 'WARNING|BUG|Call Trace|stall|lockup|I/O error|EXT4-fs error' | grep -v 'Speculative Return Stack' || true";

/** Ticks that a process has run. */
async function ticksOf(pid: number): Promise<number> {
  const fields = (await readFile(`/proc/${pid}/stat`, "latin1")).split(") ")[1]?.split(" ") ?? [];
  return Number(fields[11]) + Number(fields[12]);
}

/** Of the four files of a snapshot. */
async function digests(path: string): Promise<bigint[]> {
  const files = ["", ".mem", ".vmstate", ".rootfs"].map((end) => Bun.file(`${path}${end}`));
  const all: bigint[] = [];
  for (const file of files) all.push(BigInt(Bun.hash(await file.bytes())));
  return all;
}

/** Does something and prints how long it took. */
async function timed<Result>(what: string, work: Promise<Result>): Promise<Result> {
  const beganMs = performance.now();
  const result = await work;
  process.stdout.write(`${what}: ${Math.round(performance.now() - beganMs)} ms\n`);
  return result;
}

describe.each([...KINDS])("a machine that checks itself, with a %s disk", (kind) => {
  let machine: EngineMachine;
  beforeAll(async () => {
    machine = await EngineMachine.boot({ vcpus: 2 }, kind);
    await machine.startChecks(MEMORY_MIB, DISK_MIB);
  });
  afterAll(() => machine?.[Symbol.asyncDispose]());

  const goesOn = (): Promise<void> => machine.goesOn();
  /** Leaves a word in memory and on the disk. */
  const mark = (word: string): Promise<string> => machine.output(`echo ${word} | tee /run/mark >/root/mark; sync`);
  /** It is as it was when the word was left and the work had come so far. How fast it goes on from there is its own. */
  const expectBack = async (word: string, before: readonly number[]): Promise<void> => {
    expect(await machine.output("cat /run/mark /root/mark")).toBe(`${word}\n${word}\n`);
    for (const [index, round] of (await machine.rounds()).entries()) {
      expect(round).toBeGreaterThanOrEqual(before[index] as number);
    }
  };

  test(`stands still and goes on, ${PAUSES} times`, async () => {
    for (let pause = 0; pause < PAUSES; pause += 1) {
      expect(await machine.do("pause")).toEqual({ status: "state", lifecycle: "paused" });
      const before = await ticksOf(await machine.pid());
      await Bun.sleep(PAUSE_MS);
      expect(await ticksOf(await machine.pid())).toBe(before);
      expect(await machine.do("resume")).toEqual({ status: "state", lifecycle: "running" });
      if (pause % 4 === 0) await goesOn();
    }
    await goesOn();
    expect(await machine.output(TROUBLE)).toBe("");
  });

  test(`comes back to a snapshot, ${CYCLES} times and ${RESTORES} times to the first, which stays as it is`, async () => {
    for (let cycle = 0; cycle < CYCLES; cycle += 1) {
      const path = machine.snapshot(`snapshot${cycle}`);
      await mark(`before${cycle}`);
      const before = await machine.rounds();
      await timed("snapshot", machine.do("snapshot_save", { path }));
      expect(await machine.do("metrics")).toMatchObject({ lifecycle: "running" });
      const digest = cycle === 0 ? await digests(path) : [];
      await goesOn();
      for (let restore = 0; restore < (cycle === 0 ? RESTORES : 1); restore += 1) {
        await mark("after");
        await timed("work", goesOn());
        await timed("restore", machine.do("snapshot_restore", { path }));
        await expectBack(`before${cycle}`, before);
        await goesOn();
      }
      if (cycle === 0) expect(await digests(path)).toEqual(digest);
      await Promise.all(["", ".mem", ".vmstate", ".rootfs"].map((end) => rm(`${path}${end}`)));
    }
    expect(await machine.output(TROUBLE)).toBe("");
  });

  test("goes on in another process from a snapshot, which stays as it is", async () => {
    const path = machine.snapshot("kept");
    await mark("before");
    const before = await machine.rounds();
    await timed("snapshot", machine.do("snapshot_save", { path }));
    const digest = await digests(path);
    await mark("after");
    await goesOn();
    await machine.kill9();
    machine = await machine.again({ vcpus: 2, restore: path }, kind);
    await expectBack("before", before);
    await goesOn();
    expect(await digests(path)).toEqual(digest);
    expect(await machine.output(TROUBLE)).toBe("");
  });

  test("notices when anybody else changes its disk", async () => {
    await machine.output("dd if=/dev/zero of=/root/checked bs=512 seek=100 count=4 conv=notrunc; sync");
    await expect(goesOn()).rejects.toThrow("bad disk");
  });

  test("has a sound file system afterwards", async () => {
    await machine.exec("poweroff").catch(() => undefined);
    expect(await machine.ended()).toBe(0);
    if (kind === "raw") await outputOf(["e2fsck", "-f", "-n", machine.disk]);
    else machine = await machine.again();
  });
});

test.each(CRASHES)(
  "what was synced is there after the engine was killed, and the journal mends the rest (%s %p)",
  async (kind, crash) => {
    await using machine = await EngineMachine.boot({}, kind);
    let synced = 0;
    let pending = Buffer.alloc(0);
    using _listener = await machine.listen(JOURNAL_PORT, {
      data: (_: unknown, bytes: Buffer) => {
        pending = Buffer.concat([pending, bytes]);
        for (; pending.length >= 4; pending = pending.subarray(4)) synced = pending.readUInt32LE();
      },
    });
    await machine.start(`workload journal /root/journal ${JOURNAL_PORT}`);
    await until("files are synced", async () => synced >= JOURNAL_FILES + crash, WAIT_MS);
    await machine.kill9();
    const again = await machine.again({}, kind);
    expect(await again.output("dmesg")).toContain("EXT4-fs (vda): recovery complete");
    await again.output(`workload files /root/journal ${synced}`);
    expect(await again.output(TROUBLE)).toBe("");
    await again.exec("poweroff").catch(() => undefined);
    expect(await again.ended()).toBe(0);
    if (kind === "raw") await outputOf(["e2fsck", "-f", "-n", again.disk]);
  },
);
