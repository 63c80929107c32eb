// Large bodies share a budget in the order of their arrival.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { BodyBudget } from "./body-budget.ts";

test("who fits gets in at once, who does not waits for a release", async () => {
  const budget = new BodyBudget(200, 60_000);
  const first = await budget.reserve(60, "one");
  const order: string[] = [];
  const second = budget.reserve(50, "one").then((release) => (order.push("second"), release));
  const third = budget.reserve(10, "one").then((release) => (order.push("third"), release));
  await Bun.sleep(5);
  expect(order).toEqual([]);
  first();
  (await second)();
  (await third)();
  expect(order).toEqual(["second", "third"]);
  (await budget.reserve(100, "one"))();
});

test("the largest body fits the share of one holder", () => {
  expect(limits.requestBodyMaxBytes).toBeLessThanOrEqual(limits.bodyBudgetBytes / 2);
});

test("a release counts once", async () => {
  const budget = new BodyBudget(200, 5);
  const release = await budget.reserve(100, "one");
  release();
  release();
  await budget.reserve(100, "one");
  expect(budget.reserve(1, "one")).rejects.toMatchObject({ code: "UPLOADS_BUSY" });
});

test("a wait ends after its time, and those behind go on", async () => {
  const budget = new BodyBudget(200, 20);
  const release = await budget.reserve(50, "one");
  const tooBig = budget.reserve(80, "one");
  const behind = budget.reserve(40, "one");
  await expect(tooBig).rejects.toMatchObject({ code: "UPLOADS_BUSY" });
  (await behind)();
  release();
  (await budget.reserve(100, "one"))();
});

test("one holder gets half, and its line is not in the way of others", async () => {
  const budget = new BodyBudget(200, 60_000);
  const first = await budget.reserve(90, "greedy");
  let admitted = false;
  const second = budget.reserve(80, "greedy").then((release) => ((admitted = true), release));
  const other = await budget.reserve(100, "modest");
  expect(admitted).toBe(false);
  first();
  (await second)();
  other();
});

test("who waits for the bytes of others is not overtaken", async () => {
  const budget = new BodyBudget(200, 60_000);
  const held = [await budget.reserve(100, "one"), await budget.reserve(60, "two")];
  const order: string[] = [];
  const large = budget.reserve(90, "three").then((release) => (order.push("large"), release()));
  const small = budget.reserve(10, "four").then((release) => (order.push("small"), release()));
  await Bun.sleep(5);
  expect(order).toEqual([]);
  for (const release of held) release();
  await Promise.all([large, small]);
  expect(order).toEqual(["large", "small"]);
});
