import { expect, test } from "bun:test";
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync, writeSync } from "node:fs";
import { isWritable } from "./readiness.ts";

/** A pipe's two ends, the writing one without waiting. */
function pipe(): { reader: number; writer: number } & Disposable {
  const directory = mkdtempSync("/tmp/fluxvm-readiness-");
  Bun.spawnSync(["mkfifo", `${directory}/fifo`]);
  const reader = openSync(`${directory}/fifo`, constants.O_RDONLY | constants.O_NONBLOCK);
  const writer = openSync(`${directory}/fifo`, constants.O_WRONLY | constants.O_NONBLOCK);
  const dispose = () => rmSync(directory, { recursive: true });
  return { reader, writer, [Symbol.dispose]: dispose };
}

test("a pipe is writable until it is full, and again when one page of it was read", () => {
  using ends = pipe();
  let pages = 0;
  for (; isWritable(ends.writer, 0); pages++) expect(writeSync(ends.writer, Buffer.alloc(4096))).toBe(4096);
  expect(pages).toBeGreaterThan(1);
  expect(() => writeSync(ends.writer, "x")).toThrow("EAGAIN");
  readSync(ends.reader, Buffer.alloc(4096));
  expect(isWritable(ends.writer, 0)).toBe(true);
  closeSync(ends.reader);
  closeSync(ends.writer);
});

test("waits for a reader as long as it is told to", async () => {
  using ends = pipe();
  while (isWritable(ends.writer, 0)) writeSync(ends.writer, Buffer.alloc(4096));
  const started = performance.now();
  expect(isWritable(ends.writer, 30)).toBe(false);
  expect(performance.now() - started).toBeGreaterThanOrEqual(30);
  const other = Bun.spawn(["sh", "-c", "sleep 0.05; head -c 4096 >/dev/null; sleep 5"], {
    stdin: ends.reader,
  });
  expect(isWritable(ends.writer, 5_000)).toBe(true);
  other.kill();
  await other.exited;
  closeSync(ends.reader);
  closeSync(ends.writer);
});

test("what fails at once does not have to be waited for", () => {
  using ends = pipe();
  closeSync(ends.reader);
  expect(isWritable(ends.writer, 0)).toBe(true);
  expect(() => writeSync(ends.writer, "x")).toThrow("EPIPE");
  closeSync(ends.writer);
  expect(isWritable(ends.writer, 0)).toBe(true);
});
