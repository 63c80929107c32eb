// Rounds: one after the other, and none after the end.
import { expect, test } from "bun:test";
import { Rounds } from "./rounds.ts";

test("a round begins when the one before is over, and none once they are stopped", async () => {
  let begun = 0;
  let running = 0;
  let most = 0;
  const rounds = new Rounds(1, async () => {
    begun += 1;
    running += 1;
    most = Math.max(most, running);
    await Bun.sleep(5);
    running -= 1;
  });
  rounds.start();
  while (begun < 3) await Bun.sleep(1);
  await rounds.stop();
  expect([running, most]).toEqual([0, 1]);
  const before = begun;
  await Bun.sleep(20);
  expect(begun).toBe(before);
});

test("stopped before the first, nothing is done", async () => {
  let begun = 0;
  const rounds = new Rounds(1, async () => void (begun += 1));
  rounds.start();
  await rounds.stop();
  rounds.start();
  await Bun.sleep(10);
  expect(begun).toBe(0);
});
