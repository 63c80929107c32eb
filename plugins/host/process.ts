// Processes by identity: pid, start time and boot together, because a pid alone is reused by the kernel.
import { readFile } from "node:fs/promises";
import { constants } from "node:os";
import { processRuns, signalProcess } from "../../ffi/host/processes.ts";
import type { ProcessIdentity } from "../../src/contracts/backend.ts";
import type { Json } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";

const START_TICKS_FIELD = 19; // field 22 of stat(5), counted from the state that follows the command name
/** A killed process is mostly gone in less than a millisecond. */
const POLL_FIRST_MS = 1;
const POLL_MAX_MS = 8;
const KILL_BUDGET_MS = 5_000;

let bootIdOnce: Promise<string> | undefined;

export function bootId(): Promise<string> {
  bootIdOnce ??= readFile("/proc/sys/kernel/random/boot_id", "utf8").then((text) => text.trim());
  return bootIdOnce;
}

/** Start time in clock ticks, or null when no such process lives; a zombie counts as gone. */
export async function startTicks(pid: number): Promise<number | null> {
  let stat: string;
  try {
    stat = await readFile(`/proc/${pid}/stat`, "latin1");
  } catch {
    return null;
  }
  const fields = stat.slice(stat.lastIndexOf(")") + 2).split(" ");
  if (fields[0] === "Z" || fields[0] === "X") return null;
  return Number(fields[START_TICKS_FIELD]);
}

export async function isAlive(identity: ProcessIdentity): Promise<boolean> {
  return identity.bootId === (await bootId()) && processRuns(identity);
}

/** Sends a signal when the process is still the one recorded. */
export async function signal(identity: ProcessIdentity, name: NodeJS.Signals): Promise<void> {
  if (identity.bootId === (await bootId())) signalProcess(identity, constants.signals[name]);
}

/** Waits until the process is gone; false when it still lives after `budgetMs`. */
export async function waitGone(identity: ProcessIdentity, budgetMs: number): Promise<boolean> {
  const deadline = performance.now() + budgetMs;
  for (let pauseMs = POLL_FIRST_MS; await isAlive(identity); pauseMs = Math.min(2 * pauseMs, POLL_MAX_MS)) {
    if (performance.now() >= deadline) return false;
    await Bun.sleep(pauseMs);
  }
  return true;
}

/** Kills a recorded process and waits until it is gone. One that is gone already is fine. */
export async function killAndWait(identity: ProcessIdentity, role: string): Promise<void> {
  await signal(identity, "SIGKILL");
  if (await waitGone(identity, KILL_BUDGET_MS)) return;
  throw new AgentError("INTERNAL", `${role} ${identity.pid} survived SIGKILL`);
}

/** An identity as a journal row has it, or null where the row was written before there was a process. */
export function recordedIdentity(recorded: Json | undefined): ProcessIdentity | null {
  if (typeof recorded !== "object" || recorded === null || Array.isArray(recorded)) return null;
  const { pid, startTicks: ticks, bootId: boot } = recorded as Readonly<Record<string, Json>>;
  return { pid: Number(pid), startTicks: Number(ticks), bootId: String(boot) };
}
