import { expect, test } from "bun:test";
import { configSchema } from "./schema.ts";
import { uidRanges } from "./uids.ts";

test("the ranges lie one right above the other, and make the whole", () => {
  const { sandboxes, supervisors, machines, all } = uidRanges(configSchema.parse({}).sandbox.procbox);
  expect([sandboxes.first, supervisors.first, machines.first]).toEqual([200_000, 204_096, 208_192]);
  expect(machines.first + machines.count).toBe(all.first + all.count);
  expect(new Set([sandboxes.count, supervisors.count, machines.count])).toEqual(new Set([4096]));
});
