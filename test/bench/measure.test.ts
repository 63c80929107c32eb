import { expect, test } from "bun:test";
import { compare, median, upperBound } from "./measure.ts";

test("median and its bound", () => {
  expect(median([3, 1, 2])).toBe(2);
  expect(median([4, 1, 2, 3])).toBe(2.5);
  expect(upperBound([1, 1, 1])).toBe(1);
  expect(upperBound([1, 2, 3, 4, 100])).toBeGreaterThanOrEqual(3);
});

test("a budget is met by the bound, not by the median", async () => {
  const noisy = [1, 1, 1, 1.5, 1.5, 1.5, 1];
  let next = 0;
  const row = await compare({
    metric: "m",
    peerName: "p",
    unit: "ms",
    budget: 1.1,
    pairs: 6,
    ours: async () => noisy[next++ % noisy.length] ?? 1,
    peer: async () => 1,
  });
  expect(row.ratio).toBeLessThanOrEqual(1.5);
  expect(row.met).toBe(false);
});
