import { expect, test } from "bun:test";
import { mkdtemp, rm, stat } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { limits } from "../../config/limits.ts";
import { RING_SIZES, RingBudget } from "./ring-budget.ts";
import { RingFile } from "./ring-file.ts";

const MIB = 1024 * 1024;

async function scratch() {
  const directory = await mkdtemp(join(tmpdir(), "ring-"));
  return {
    path: join(directory, "x.stdout"),
    [Symbol.asyncDispose]: () => rm(directory, { recursive: true, force: true }),
  };
}

const NOTHING = { bytes: () => 0, reserved: () => 0, evict: () => false };
const plenty = (): RingBudget => new RingBudget(1024 * MIB, NOTHING);

/** The byte at an offset, different at every distance that a mistake in the ring could make. */
const byteAt = (offset: number): number => (offset * 31 + Math.floor(offset / 251)) & 0xff;
const pattern = (offset: number, length: number): Uint8Array =>
  Uint8Array.from({ length }, (_, n) => byteAt(offset + n));

/** Writes like the pump does: in batches, and with a header when one is due. */
async function fill(ring: RingFile, to: number): Promise<void> {
  while (ring.window.end < to) {
    const offset = ring.window.end;
    await ring.write(offset, [pattern(offset, Math.min(ring.batchMaxBytes, to - offset))]);
    if (ring.mustKeep) await ring.keep();
  }
}

async function expectWhole(ring: RingFile): Promise<void> {
  const { base, end } = ring.window;
  for (let at = base; at < end;) {
    const data = await ring.read(at, 256 * 1024);
    expect(data.length).toBeGreaterThan(0);
    expect(Buffer.compare(data, pattern(at, data.length))).toBe(0);
    at += data.length;
  }
}

test("keeps all of the output below the bound, and exactly the newest 8 MiB beyond it", async () => {
  await using place = await scratch();
  const ring = RingFile.create(place.path, plenty());
  await fill(ring, 8 * MIB);
  expect(ring.window).toEqual({ base: 0, end: 8 * MIB });
  await fill(ring, 8 * MIB + 4);
  expect(ring.window).toEqual({ base: 4, end: 8 * MIB + 4 });
  await fill(ring, 30 * MIB + 7);
  expect(ring.window).toEqual({ base: 22 * MIB + 7, end: 30 * MIB + 7 });
  await expectWhole(ring);
  expect((await stat(place.path)).size).toBeLessThanOrEqual(9 * MIB + 64);
  await ring.close();
});

test("is found again with everything that it promised, whatever was written after", async () => {
  await using place = await scratch();
  const first = RingFile.create(place.path, plenty());
  await fill(first, 20 * MIB);
  await first.keep();
  const promised = first.window;
  // What an agent wrote that was killed before its next header.
  await first.write(promised.end, [new Uint8Array(first.batchMaxBytes).fill(7)]);
  await first.close();
  const second = await RingFile.find(place.path, plenty());
  expect(second.window).toEqual(promised);
  await expectWhole(second);
  await fill(second, 25 * MIB);
  await expectWhole(second);
  await second.close();
});

test("a killed agent's writes never touch what is promised, at any size of the ring", async () => {
  for (const total of [100_000, RING_SIZES.stepBytes, 200_000, 700_000, 5 * MIB, 9 * MIB, 12 * MIB]) {
    await using place = await scratch();
    const first = RingFile.create(place.path, new RingBudget(2 * MIB, NOTHING));
    await fill(first, total);
    while (!first.mustKeep) await first.write(first.window.end, [pattern(first.window.end, first.batchMaxBytes / 3)]);
    await first.close();
    const second = await RingFile.find(place.path, plenty());
    await expectWhole(second);
    await fill(second, second.window.end + 3 * MIB);
    await expectWhole(second);
    await second.close();
  }
});

test("a ring that may not grow keeps fewer bytes, and all of them are right", async () => {
  await using place = await scratch();
  const ring = RingFile.create(place.path, new RingBudget(0, NOTHING));
  await fill(ring, 3 * MIB);
  expect(ring.window).toEqual({ base: 3 * MIB - 128 * 1024, end: 3 * MIB });
  await expectWhole(ring);
  await ring.close();
});

test("a ring that could not grow does so when there is room again, at any moment, and loses nothing more", async () => {
  const whole = MIB;
  const sizes = { stepBytes: RING_SIZES.stepBytes / 8, keptMaxBytes: whole };
  for (const [left, turn] of [
    [90_000, 1],
    [90_000, 40_000],
    [90_000, 125_003],
    [90_000, whole / 4],
    [360_000, 7 * (whole / 8)],
    [360_000, 7 * (whole / 8) + 9000],
  ] as const) {
    await using place = await scratch();
    const budget = new RingBudget(64 * MIB, NOTHING, sizes);
    budget.takeAlways(64 * MIB - left);
    const ring = RingFile.create(place.path, budget);
    await fill(ring, turn);
    await expectWhole(ring);
    budget.give(64 * MIB - left);
    await fill(ring, turn + 3 * (whole / 8));
    await expectWhole(ring);
    await ring.keep();
    await fill(ring, turn + 12 * (whole / 8));
    await expectWhole(ring);
    expect(ring.window.end - ring.window.base).toBeGreaterThan(7 * (whole / 8));
    await ring.close();
    const found = await RingFile.find(place.path, new RingBudget(64 * MIB, NOTHING, sizes));
    await expectWhole(found);
    await found.close();
  }
});

test("large rings leave what the others can count on", () => {
  const budget = new RingBudget(64 * MIB, { ...NOTHING, reserved: () => 40 * MIB });
  expect(budget.take(16 * MIB, 8 * MIB)).toBe(true);
  expect(budget.take(1, 8 * MIB)).toBe(false);
  expect(budget.take(48 * MIB, budget.modestBytes - 1)).toBe(true);
  expect(budget.take(1, 0)).toBe(false);
});

test("begins anew where bytes were lost", async () => {
  await using place = await scratch();
  const ring = RingFile.create(place.path, plenty());
  await fill(ring, 1000);
  await ring.write(5000, [pattern(5000, 10)]);
  expect(ring.window).toEqual({ base: 5000, end: 5010 });
  await expectWhole(ring);
  await ring.keep();
  await ring.close();
  const found = await RingFile.find(place.path, plenty());
  expect(found.window).toEqual({ base: 5000, end: 5010 });
  await fill(found, 10 * MIB);
  await expectWhole(found);
  await found.close();
});

test("a file that makes no sense is an empty ring", async () => {
  await using place = await scratch();
  for (const content of ["", "x", "x".repeat(64), "x".repeat(4096)]) {
    await Bun.write(place.path, content);
    const ring = await RingFile.find(place.path, plenty());
    expect(ring.window).toEqual({ base: 0, end: 0 });
    await fill(ring, 100);
    await expectWhole(ring);
    await ring.close();
  }
});

test("takes its room from the budget and gives it back", async () => {
  await using place = await scratch();
  const budget = plenty();
  const ring = RingFile.create(place.path, budget);
  expect(budget.usedBytes).toBe(0);
  await fill(ring, 10);
  expect(budget.usedBytes).toBe(RING_SIZES.stepBytes);
  await fill(ring, 20 * MIB);
  expect(budget.usedBytes).toBe((limits.executionRingMaxBytes * 9) / 8);
  await ring.remove();
  expect(budget.usedBytes).toBe(0);
  expect(await Bun.file(place.path).exists()).toBe(false);
});
