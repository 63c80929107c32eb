// What the kernel of an emulated machine must be told of time. The small machine has nothing that a kernel could measure
// its processor's clock by; with KVM the kernel asks KVM, and emulated it gets the host's own clock, whose rate is told.
import { readFile } from "node:fs/promises";
import { AgentError } from "../../src/errors/agent-error.ts";
import type { QemuSpec } from "./request.ts";

/** What no processor's clock is slower or faster than; a number outside is none. */
const KHZ_MIN = 100_000;
const KHZ_MAX = 20_000_000;
const PROCESSOR = "/sys/devices/system/cpu/cpu0";

/** Reads a file of the host, or rejects. */
type ReadText = (path: string) => Promise<string>;

/**
 * Arguments for the kernel of `spec`'s machine, or "".
 * Rejects with `CAPABILITY_MISSING` where the machine needs to be told what this host does not say.
 */
export async function clockArguments({ machine, accel }: Pick<QemuSpec, "machine" | "accel">): Promise<string> {
  if (machine !== "microvm" || accel === "kvm") return "";
  const khz = await processorClockKhz();
  if (khz !== null) return `tsc_early_khz=${khz}`;
  throw new AgentError(
    "CAPABILITY_MISSING",
    "an emulated microvm must be told the rate of the processor's clock, which this host does not tell: use q35",
    { details: { capability: "kvm" } },
  );
}

/** The rate of this host's time-stamp counter, in kHz, or null where nothing tells it. */
export async function processorClockKhz(read: ReadText = (path) => readFile(path, "utf8")): Promise<number | null> {
  const text = (path: string): Promise<string> => read(path).catch(() => "");
  // The counter runs at the rate that the processor is sold with, whatever its cores run at just now.
  const sold =
    wholeKhz(await text(`${PROCESSOR}/cpufreq/base_frequency`), 1) ??
    wholeKhz(await text(`${PROCESSOR}/acpi_cppc/nominal_freq`), 1000);
  if (sold !== null) return sold;
  // Where cores change their rate, the one of just now says nothing.
  if ((await text(`${PROCESSOR}/cpufreq/scaling_driver`)) !== "") return null;
  return wholeKhz(/^cpu MHz\s*: ([\d.]+)$/m.exec(await text("/proc/cpuinfo"))?.[1] ?? "", 1000);
}

function wholeKhz(text: string, khz: number): number | null {
  const rate = Math.round(Number.parseFloat(text) * khz);
  return rate >= KHZ_MIN && rate <= KHZ_MAX ? rate : null;
}
