// Whether commands run in a sandbox: their number, which is what makes it `running`, and the events that tell of the
// first one's start and the last one's end. These events are for those who follow; the log keeps the executions' own.
import type { JsonObject } from "../contracts/json.ts";
import type { Context } from "./context.ts";
import type { ExitStatus } from "./record.ts";
import type { Sandbox } from "./sandbox.ts";
import { eventRow } from "./transition.ts";

/** How a command ended: as its process did, or why nobody saw that. */
export type CommandEnd = ExitStatus | { readonly error: string };

/** The end of a command that nobody saw. */
export const UNSEEN_END: CommandEnd = { error: "its end was not seen" };

const SIGNAL_STATUS_BASE = 128;

/** A command has begun. */
export function commandBegan(context: Context, sandbox: Sandbox): void {
  sandbox.runningCommands += 1;
  if (sandbox.toldRunning) return;
  sandbox.toldRunning = true;
  context.dependencies.publish(eventRow(context, sandbox.record, "sandbox.running", {}));
}

/** A command that began has ended; to be followed by `tellIdle` when whatever else tells of it has. */
export function commandEnded(sandbox: Sandbox, end: CommandEnd): void {
  sandbox.runningCommands -= 1;
  sandbox.lastCommandEnd = end;
}

/**
 * Tells that the sandbox is idle, when it is and nobody was told. How its last command ended is not the caller's to say:
 * what is told of a command takes a while, and another may have ended meanwhile.
 */
export function tellIdle(context: Context, sandbox: Sandbox): void {
  if (sandbox.runningCommands > 0 || !sandbox.toldRunning) return;
  sandbox.toldRunning = false;
  // The end of the sandbox has events of its own.
  if (sandbox.record.phase !== "ready") return;
  context.dependencies.publish(
    eventRow(context, sandbox.record, "sandbox.idle", idleAttributes(sandbox.lastCommandEnd)),
  );
}

/** Does what changes files for a caller, which the sandbox has to be left in. */
export async function writing<T>(sandbox: Sandbox, work: () => Promise<T>): Promise<T> {
  sandbox.runningWrites += 1;
  try {
    return await work();
  } finally {
    sandbox.runningWrites -= 1;
  }
}

/** The exit code is what a shell would say. */
function idleAttributes(end: CommandEnd): JsonObject {
  if ("error" in end) return { error: end.error };
  if ("signal" in end) return { exit_code: SIGNAL_STATUS_BASE + end.signal, signal: end.signal };
  return { exit_code: end.code };
}
