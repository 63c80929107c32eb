// Large bodies share a budget in the order of their arrival.
import { expect, test } from "bun:test";
import { BodyBudget } from "./body-budget.ts";

test("who fits gets in at once, who does not waits for a release", async () => {
  const budget = new BodyBudget(100, 60_000);
  const first = await budget.reserve(60);
  const order: string[] = [];
  const second = budget.reserve(50).then((release) => (order.push("second"), release));
  const third = budget.reserve(10).then((release) => (order.push("third"), release));
  await Bun.sleep(5);
  expect(order).toEqual([]);
  first();
  (await second)();
  (await third)();
  expect(order).toEqual(["second", "third"]);
  (await budget.reserve(100))();
});

test("a release counts once", async () => {
  const budget = new BodyBudget(100, 5);
  const release = await budget.reserve(100);
  release();
  release();
  await budget.reserve(100);
  expect(budget.reserve(1)).rejects.toMatchObject({ code: "UPLOADS_BUSY" });
});

test("a wait ends after its time, and those behind go on", async () => {
  const budget = new BodyBudget(100, 20);
  const release = await budget.reserve(50);
  const tooBig = budget.reserve(80);
  const behind = budget.reserve(40);
  await expect(tooBig).rejects.toMatchObject({ code: "UPLOADS_BUSY" });
  (await behind)();
  release();
  (await budget.reserve(100))();
});
