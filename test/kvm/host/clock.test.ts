import { expect, test } from "bun:test";
import { argumentsFor } from "./clock.ts";

const cpuinfo = (flags: string): string => `processor\t: 0\ncpu MHz\t\t: 2596.134\nflags\t\t: fpu tsc ${flags} sse\n`;

test("a known speed is told", () => {
  expect(argumentsFor(cpuinfo("constant_tsc"), false)).toEqual(["tsc_early_khz=2596134", "tsc=reliable"]);
});

test("a speed that is not that of the time stamps is left to the kernel", () => {
  expect(argumentsFor(cpuinfo("constant_tsc"), true)).toEqual([]);
  expect(argumentsFor(cpuinfo("rdtscp"), false)).toEqual([]);
  expect(argumentsFor("", false)).toEqual([]);
});
