// Bytes come out as they went in, whatever pieces they come and go in.
import { expect, test } from "bun:test";
import { ByteQueue } from "./byte-queue.ts";

test("pieces of any size, taken in any size, stay in order", () => {
  const queue = new ByteQueue();
  let seed = 1;
  const random = (below: number): number => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return seed % below;
  };
  let pushed = 0;
  let taken = 0;
  for (let round = 0; round < 3000; round++) {
    const length = random(4) === 0 ? random(40_000) : random(64);
    queue.push(Uint8Array.from({ length }, (_, at) => (pushed + at) % 251));
    pushed += length;
    if (random(2) === 0) continue;
    const max = 1 + random(30_000);
    const expected = Math.min(max, pushed - taken);
    const bytes = queue.take(max);
    expect(bytes.length).toBe(expected);
    for (const byte of bytes) {
      if (byte !== taken % 251) throw new Error(`byte ${taken} is wrong`);
      taken += 1;
    }
    expect(queue.length).toBe(pushed - taken);
  }
});

test("many small pieces take the room of their bytes", () => {
  const queue = new ByteQueue();
  const before = process.memoryUsage().arrayBuffers;
  for (let at = 0; at < 200_000; at++) queue.push(Uint8Array.of(at));
  expect(queue.length).toBe(200_000);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(8 * 1024 * 1024);
  expect(queue.take(1_000_000).length).toBe(200_000);
  expect(queue.take(1).length).toBe(0);
});

test("what was taken stays as it was", () => {
  const queue = new ByteQueue();
  queue.push(Buffer.from("abc"));
  const first = queue.take(2);
  queue.push(Buffer.from("defg"));
  expect([Buffer.from(first).toString(), Buffer.from(queue.take(10)).toString()]).toEqual(["ab", "cdefg"]);
});
