// What a process takes of memory, as the kernel counts it.
import { readFile, writeFile } from "node:fs/promises";

/** A line of the memory of a process, in KiB. */
export async function memoryKib(pid: number, line: "VmRSS" | "VmHWM"): Promise<number> {
  const status = await readFile(`/proc/${pid}/status`, "utf8");
  return Number(new RegExp(`^${line}:\\s+(\\d+) kB$`, "m").exec(status)?.[1] ?? Number.NaN);
}

/** The highest RSS while `work` runs, in KiB. */
export async function highestKib(pid: number, work: () => Promise<unknown>): Promise<number> {
  // The high-water mark begins anew.
  await writeFile(`/proc/${pid}/clear_refs`, "5");
  await work();
  return memoryKib(pid, "VmHWM");
}
