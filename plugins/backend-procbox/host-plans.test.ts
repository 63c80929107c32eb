import { expect, test } from "bun:test";
import { HostPlans } from "./host-plans.ts";

function counting(gaps: () => string[]): { plans: HostPlans; asked: string[]; pass: (ms: number) => void } {
  const asked: string[] = [];
  let nowMs = 0;
  const plan = (config: string) => {
    asked.push(config);
    return Promise.resolve({ gaps: gaps(), notes: ["a note"] });
  };
  return { plans: new HostPlans(plan, () => nowMs), asked, pass: (ms) => (nowMs += ms) };
}

test("a plan without gaps is asked for once in a while", async () => {
  const { plans, asked, pass } = counting(() => []);
  expect(await plans.of("a")).toEqual({ gaps: [], notes: ["a note"] });
  pass(29_000);
  expect(await plans.of("a")).toEqual({ gaps: [], notes: ["a note"] });
  await plans.of("b");
  expect(asked).toEqual(["a", "b"]);
  pass(2_000);
  await plans.of("a");
  expect(asked).toEqual(["a", "b", "a"]);
});

test("a gap is looked at each time", async () => {
  let gaps = ["no Landlock"];
  const { plans, asked } = counting(() => gaps);
  expect((await plans.of("a")).gaps).toEqual(["no Landlock"]);
  gaps = [];
  expect((await plans.of("a")).gaps).toEqual([]);
  expect(asked).toEqual(["a", "a"]);
});

test("no more than a bounded number is remembered", async () => {
  const { plans, asked } = counting(() => []);
  for (let n = 0; n < 65; n++) await plans.of(`c${n}`);
  await plans.of("c64");
  await plans.of("c1");
  expect(asked).toHaveLength(65);
  await plans.of("c0");
  expect(asked).toHaveLength(66);
});
