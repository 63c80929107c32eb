// The process that stands for a fake sandbox: the agent itself, as nothing else runs.
import { readFile } from "node:fs/promises";
import type { ProcessIdentity } from "../../src/contracts/backend.ts";

/** Field 22 of `/proc/<pid>/stat`, counted after the command name, which may hold spaces. */
const START_TICKS_AFTER_NAME = 19;

export async function agentIdentity(): Promise<ProcessIdentity> {
  const stat = await readFile("/proc/self/stat", "utf8");
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  const bootId = (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
  return { pid: process.pid, startTicks: Number(fields[START_TICKS_AFTER_NAME]), bootId };
}

export function sameIdentity(left: ProcessIdentity, right: ProcessIdentity): boolean {
  return left.pid === right.pid && left.startTicks === right.startTicks && left.bootId === right.bootId;
}
