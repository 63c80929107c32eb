// An execution's result in the wire's words.
import type { ExecResult } from "../../contracts/channel.ts";
import { outputFields } from "../bytes-text.ts";

const TIMED_OUT = 124;
const SIGNAL_BASE = 128;

/** The fields that every route with a command answers. */
export function execReplyFields(result: ExecResult) {
  return {
    result: "exec",
    exit_code: exitCode(result),
    ...outputFields("stdout", result.stdout),
    ...outputFields("stderr", result.stderr),
    ...truncated("stdout_truncated_bytes", result.stdoutLength - result.stdout.byteLength),
    ...truncated("stderr_truncated_bytes", result.stderrLength - result.stderr.byteLength),
    ...(result.timedOut ? { timed_out: true } : {}),
    ...(result.oomKilled ? { oom_killed: true } : {}),
  };
}

function exitCode(result: ExecResult): number {
  if (result.timedOut) return TIMED_OUT;
  if (result.signal !== null) return SIGNAL_BASE + result.signal;
  if (result.exitCode === null) throw new Error("an execution ended with neither an exit code nor a signal");
  return result.exitCode;
}

function truncated(name: string, bytes: number): Record<string, number> {
  return bytes > 0 ? { [name]: bytes } : {};
}
