// The child processes of this one, to see whether a plugin leaves any behind.
import { readdir, readFile } from "node:fs/promises";

const SETTLE_MS = 3_000;
const LOOK_INTERVAL_MS = 50;

/** `pid name` of every child, zombies included. */
export async function childProcesses(): Promise<ReadonlySet<string>> {
  const pids = (await readdir("/proc")).filter((name) => /^\d+$/.test(name));
  const children = await Promise.all(pids.map(childLine));
  return new Set(children.filter((line) => line !== null));
}

/** The children that were not there `before` and do not end within a moment. */
export async function leftOver(before: ReadonlySet<string>): Promise<readonly string[]> {
  const deadlineMs = performance.now() + SETTLE_MS;
  for (;;) {
    const left = [...(await childProcesses())].filter((line) => !before.has(line));
    if (left.length === 0 || performance.now() > deadlineMs) return left;
    await Bun.sleep(LOOK_INTERVAL_MS);
  }
}

async function childLine(pid: string): Promise<string | null> {
  const stat = await readFile(`/proc/${pid}/stat`, "utf8").catch(() => "");
  const nameEnd = stat.lastIndexOf(")");
  const [, parent] = stat.slice(nameEnd + 2).split(" ");
  return parent === String(process.pid) ? stat.slice(0, nameEnd + 1) : null;
}
