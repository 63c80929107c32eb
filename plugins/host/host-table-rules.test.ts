// Rules that change without a new generation would be rewritten by agents of both versions, in turns.
import { expect, test } from "bun:test";
import { GENERATION, hostRules, markOf } from "./host-table-rules.ts";

test("the rules are those of their generation: whoever changes them raises it", () => {
  const digests = Object.values(hostRules(262_144)).map((body) => markOf(body, GENERATION).digest);
  expect([GENERATION, ...digests]).toEqual([2, "e4fcc5ab8aa3e146", "a4852f3b32315adc"]);
});

test("what all sandboxes may have follows what the kernel remembers, within bounds", () => {
  const shares = (trackedMax: number) => /mod (\d+) ct count over 128/.exec(hostRules(trackedMax).inet)?.[1];
  expect([1, 65_536, 262_144, 1 << 30].map(shares)).toEqual(["1", "256", "1024", "65536"]);
});
