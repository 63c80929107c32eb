import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { closeSync, constants, mkdtempSync, openSync, readSync, rmSync } from "node:fs";
import { LineOutput } from "./line-output.ts";

/** A pipe that waits for nobody; it says of itself whether it takes anything, as a reader decides. */
let directory: string;
let reader: number;
let writer: number;
let takes: boolean;

beforeEach(() => {
  directory = mkdtempSync("/tmp/fluxvm-line-output-");
  Bun.spawnSync(["mkfifo", `${directory}/fifo`]);
  reader = openSync(`${directory}/fifo`, constants.O_RDONLY | constants.O_NONBLOCK);
  writer = openSync(`${directory}/fifo`, constants.O_WRONLY | constants.O_NONBLOCK);
  takes = true;
});
afterEach(() => {
  closeSync(reader);
  closeSync(writer);
  rmSync(directory, { recursive: true });
});

const output = (unwrittenMaxBytes = 1 << 20): LineOutput =>
  new LineOutput({ fd: writer, isWritable: () => takes, unwrittenMaxBytes });

/** All that is in the pipe now. */
function read(): string {
  const pieces: string[] = [];
  const piece = Buffer.alloc(65_536);
  try {
    for (let count = -1; count !== 0;) {
      count = readSync(reader, piece);
      pieces.push(piece.toString("utf8", 0, count));
    }
  } catch (error) {
    expect((error as NodeJS.ErrnoException).code).toBe("EAGAIN");
  }
  return pieces.join("");
}

describe("lines", () => {
  test("are written before the call returns", () => {
    const lines = output();
    lines.write("one\n");
    expect(read()).toBe("one\n");
    lines.write("two\n");
    expect(read()).toBe("two\n");
  });

  test("are kept in their order while the reader is behind, and follow by themselves", async () => {
    const lines = output();
    takes = false;
    lines.write("one\n");
    lines.write("two\n");
    takes = true;
    // After those that wait, although the reader is there again.
    lines.write("three\n");
    expect(read()).toBe("");
    await Bun.sleep(100);
    expect(read()).toBe("one\ntwo\nthree\n");
  });

  test("longer than the pipe arrive whole as it is read, also where it said that it was ready and was not", async () => {
    const lines = output();
    const long = `${"x".repeat(200_000)}\n`;
    lines.write(long);
    lines.write("short\n");
    let arrived = "";
    for (const deadline = Date.now() + 10_000; !arrived.endsWith("short\n") && Date.now() < deadline;) {
      arrived += read();
      await Bun.sleep(5);
    }
    expect(arrived === `${long}short\n`).toBe(true);
  });

  test("beyond the bound are dropped, each as a whole", () => {
    const lines = output(10);
    takes = false;
    lines.write("12345678\n");
    lines.write("too long\n");
    takes = true;
    lines.flush();
    expect(read()).toBe("12345678\n");
    lines.write("again\n");
    lines.flush();
    expect(read()).toBe("again\n");
  });
});

describe("at the end", () => {
  test("what was kept is written at once", () => {
    const lines = output();
    takes = false;
    lines.write("one\n");
    takes = true;
    lines.flush();
    expect(read()).toBe("one\n");
  });

  test("a reader that does not read is waited for once, with a bound", () => {
    const waits: number[] = [];
    const isWritable = (_: number, timeoutMs: number): boolean => waits.push(timeoutMs) === 0;
    const lines = new LineOutput({ fd: writer, isWritable, unwrittenMaxBytes: 1000 });
    lines.write("one\n");
    lines.write("two\n");
    lines.flush();
    expect(waits).toEqual([0, expect.any(Number)]);
    expect(waits[1]).toBeWithin(900, 1001);
  });
});

test("a descriptor that takes nothing any more loses the line and nothing else", () => {
  const closed = openSync("/dev/full", "w");
  const lines = new LineOutput({ fd: closed, isWritable: () => true, unwrittenMaxBytes: 1000 });
  lines.write("one\n");
  lines.flush();
  closeSync(closed);
});
