import { expect, test } from "bun:test";
import { LoopDelay } from "./loop-delay.ts";

test("a synchronous stretch shows as delay, and reading resets it", async () => {
  const delay = new LoopDelay();
  delay.start();
  await Bun.sleep(20);
  delay.takeMaxMs();
  const before = process.cpuUsage();
  while (process.cpuUsage(before).user < 60_000);
  await Bun.sleep(20);
  expect(delay.takeMaxMs()).toBeGreaterThan(40);
  expect(delay.takeMaxMs()).toBe(0);
  delay.stop();
});
