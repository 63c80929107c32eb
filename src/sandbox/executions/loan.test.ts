// Output on loan: it is given back when it is on disk and nobody looks at it, and never where somebody may keep it.
import { afterEach, beforeEach, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Output } from "./output.ts";
import { RingBudget } from "./ring-budget.ts";
import { RingFile } from "./ring-file.ts";

const PIECE_BYTES = 64 * 1024;

let directory: string;
let lagging: boolean;
let output: Output;
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), "loan-"));
  lagging = false;
  const budget = new RingBudget(1024 * 1024 * 1024, { bytes: () => 0, reserved: () => 0, evict: () => false });
  output = new Output(RingFile.create(join(directory, "x.stdout"), budget), {
    arrived: () => undefined,
    kept: () => undefined,
    lagging: () => lagging,
    failing: (error) => {
      throw error;
    },
  });
});
afterEach(async () => {
  await output.close();
  await rm(directory, { recursive: true });
});

class Lender {
  lentBytes = 0;

  append(offset: number, bytes = PIECE_BYTES): Promise<void> {
    this.lentBytes += bytes;
    return output.append(offset, new Uint8Array(bytes).fill(offset % 251), this);
  }

  giveBack(bytes: number): void {
    this.lentBytes -= bytes;
    expect(this.lentBytes).toBeGreaterThanOrEqual(0);
  }
}

test("what is on disk is given back, and not before", async () => {
  const lender = new Lender();
  const stored = lender.append(0);
  expect(lender.lentBytes).toBe(PIECE_BYTES);
  await stored;
  expect(lender.lentBytes).toBe(0);
});

test("what is copied, or here already, is given back at once", async () => {
  const lender = new Lender();
  await lender.append(0, 10);
  expect(lender.lentBytes).toBe(0);
  const [small, whole] = [lender.append(10, 20), lender.append(30)];
  expect(lender.lentBytes).toBe(PIECE_BYTES);
  void lender.append(30);
  void lender.append(100, PIECE_BYTES);
  expect(lender.lentBytes).toBe(PIECE_BYTES + 70 - 70);
  await Promise.all([small, whole]);
  await output.settled();
  void lender.append(0, 5000);
  expect(lender.lentBytes).toBe(0);
});

test("what is small beside the buffer that it would keep is copied", async () => {
  let lentBytes = 0;
  const lender = { giveBack: (bytes: number) => void (lentBytes -= bytes) };
  const buffer = new ArrayBuffer(1024 * 1024);
  const stored: Promise<void>[] = [];
  for (const [offset, bytes] of [
    [0, 65_535],
    [65_535, 65_536],
  ] as const) {
    lentBytes += bytes;
    stored.push(output.append(offset, new Uint8Array(buffer, 1000, bytes), lender));
  }
  expect(lentBytes).toBe(65_536);
  const [copied, kept] = [await output.read(0, PIECE_BYTES, true), await output.read(65_535, PIECE_BYTES, true)];
  expect(copied?.data.buffer === buffer).toBe(false);
  expect(kept?.data.buffer === buffer).toBe(true);
  await Promise.all(stored);
});

test("what is borrowed is given back when all who borrowed it are done", async () => {
  const lender = new Lender();
  const stored = lender.append(0);
  const [first, second] = [await output.read(0, 1000, true), await output.read(500, PIECE_BYTES, true)];
  await stored;
  expect(lender.lentBytes).toBe(PIECE_BYTES);
  first?.done();
  expect(lender.lentBytes).toBe(PIECE_BYTES);
  second?.done();
  expect(lender.lentBytes).toBe(0);
});

test("what is borrowed and still needed here is given back when it is not", async () => {
  const lender = new Lender();
  lagging = true;
  await lender.append(0);
  (await output.read(0, PIECE_BYTES, true))?.done();
  expect(lender.lentBytes).toBe(PIECE_BYTES);
  output.allRead();
  expect(lender.lentBytes).toBe(0);
});

test("what somebody may keep is never given back, whoever else borrowed it", async () => {
  const lender = new Lender();
  const stored = lender.append(0);
  const borrowed = await output.read(0, PIECE_BYTES, true);
  const kept = await output.read(0, PIECE_BYTES);
  await stored;
  borrowed?.done();
  kept?.done();
  expect(lender.lentBytes).toBe(PIECE_BYTES);
});
