import { expect, test } from "bun:test";
import { compare, growth, median, upperBound } from "./measure.ts";

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

test.each([
  ["ratio", 1.5],
  ["difference", 1],
  ["absolute", 3],
] as const)("a budget of the kind %s is about %d", async (budgetKind, ratio) => {
  const comparison = { metric: "m", peerName: "p", unit: "ms", budget: ratio, budgetKind, pairs: 3 };
  const row = await compare({ ...comparison, ours: async () => 3, peer: async () => 2 });
  expect([row.ratio, row.ratio_upper, row.met]).toEqual([ratio, ratio, true]);
  const tighter = { ...comparison, budget: ratio - 0.1 };
  expect((await compare({ ...tighter, ours: async () => 3, peer: async () => 2 })).met).toBe(false);
});

test("growth is judged as a difference", () => {
  const row = { metric: "m", unit: "MiB", peer_name: "before", budget: 3, ours: 7, peer: 4 };
  expect([growth(row).met, growth({ ...row, budget: 2 }).met]).toEqual([true, false]);
});
