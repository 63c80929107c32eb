// Processes by identity. A pid alone is used again by the kernel; pid and start time together are not, within one boot.
import { hostLibrary } from "../library.ts";
import { check } from "../status.ts";

const PID_MAX = 2 ** 22;
const SIGNAL_MAX = 31;

export interface ProcessKey {
  readonly pid: number;
  /** Field 22 of `/proc/<pid>/stat`, in clock ticks since boot. */
  readonly startTicks: number;
}

/** Whether exactly this process runs. One that ended and waits for its parent does not. */
export function processRuns(key: ProcessKey): boolean {
  const [pid, ticks] = checked(key);
  return check(hostLibrary().fluxvm_host_process_runs(pid, ticks), "look up process", String(pid)) === 1;
}

/** Sends a signal (1 to 31) to exactly this process. False: it is gone and nobody was signalled. */
export function signalProcess(key: ProcessKey, signal: number): boolean {
  const [pid, ticks] = checked(key);
  if (!Number.isInteger(signal) || signal < 1 || signal > SIGNAL_MAX) throw new RangeError(`${signal} is not a signal`);
  return check(hostLibrary().fluxvm_host_process_signal(pid, ticks, signal), "signal process", String(pid)) === 1;
}

function checked({ pid, startTicks }: ProcessKey): [number, bigint] {
  if (!Number.isInteger(pid) || pid < 1 || pid > PID_MAX) throw new RangeError(`${pid} is not a pid`);
  if (!Number.isSafeInteger(startTicks) || startTicks < 0) throw new RangeError(`${startTicks} is not a start time`);
  return [pid, BigInt(startTicks)];
}
