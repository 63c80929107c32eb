// The rate of the processor's clock, as hosts of different kinds tell it.
import { describe, expect, test } from "bun:test";
import { clockArguments, processorClockKhz } from "./clock.ts";

const PROCESSOR = "/sys/devices/system/cpu/cpu0";
const cpuinfo = "processor\t: 0\ncpu MHz\t\t: 2596.098\ncache size\t: 512 KB\n\nprocessor\t: 1\ncpu MHz\t\t: 800.000\n";

const rate = (files: Readonly<Record<string, string>>): Promise<number | null> =>
  processorClockKhz(async (path) => {
    const text = files[path];
    if (text === undefined) throw new Error("ENOENT");
    return text;
  });

describe("the rate of the processor's clock", () => {
  test.each([
    ["a virtual machine", { "/proc/cpuinfo": cpuinfo }, 2_596_098],
    ["an Intel host", { "/proc/cpuinfo": cpuinfo, [`${PROCESSOR}/cpufreq/base_frequency`]: "3400000\n" }, 3_400_000],
    ["an AMD host", { "/proc/cpuinfo": cpuinfo, [`${PROCESSOR}/acpi_cppc/nominal_freq`]: "2450\n" }, 2_450_000],
    [
      "a host that tells only what just now is",
      { "/proc/cpuinfo": cpuinfo, [`${PROCESSOR}/cpufreq/scaling_driver`]: "acpi-cpufreq\n" },
      null,
    ],
    ["a host that says nothing", {}, null],
    ["a host that says nonsense", { "/proc/cpuinfo": "cpu MHz\t: 0.000\n" }, null],
    [
      "a host whose first answer is none",
      { "/proc/cpuinfo": cpuinfo, [`${PROCESSOR}/acpi_cppc/nominal_freq`]: "0\n" },
      2_596_098,
    ],
  ] as [string, Record<string, string>, number | null][])("of %s", async (_, files, khz) => {
    expect(await rate(files)).toBe(khz);
  });

  test("is told to the small machine alone, and only where it is emulated", async () => {
    expect(await clockArguments({ machine: "q35", accel: "tcg" })).toBe("");
    expect(await clockArguments({ machine: "microvm", accel: "kvm" })).toBe("");
  });
});
