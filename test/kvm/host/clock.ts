// How an emulated machine's kernel learns the speed of its clock. It measures it while it boots, and on a busy host the
// measurement is interrupted: then seconds inside last a third of a second. Where this machine knows the speed, which
// the emulator passes on as it is, the kernel is told.
import { existsSync } from "node:fs";
import { readFile } from "node:fs/promises";

const FREQUENCY_SCALING = "/sys/devices/system/cpu/cpu0/cpufreq";

/** Arguments for the kernel of a machine that is emulated here. */
export async function clockArguments(): Promise<string[]> {
  return argumentsFor(await readFile("/proc/cpuinfo", "latin1"), existsSync(FREQUENCY_SCALING));
}

/** `isScaled`: whether the processor's frequency moves, so that the one shown is not that of its time stamps. */
export function argumentsFor(cpuinfo: string, isScaled: boolean): string[] {
  const mhz = Number(/^cpu MHz\s*: ([\d.]+)$/m.exec(cpuinfo)?.[1]);
  const isConstant = /^flags\s*:.*\bconstant_tsc\b/m.test(cpuinfo);
  // Without it, the kernel compares its clocks and takes another one where they differ.
  if (isScaled || !isConstant || !(mhz > 0)) return [];
  return [`tsc_early_khz=${Math.round(mhz * 1000)}`, "tsc=reliable"];
}
