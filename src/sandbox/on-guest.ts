// How a call reaches the guest of a sandbox: one that is paused is resumed first, unless the caller declines, and one
// that ends meanwhile is told as ended.
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { Context } from "./context.ts";
import { tellingEnd } from "./ending.ts";
import type { Phase } from "./lifecycle.ts";
import type { Caller } from "./operations.ts";
import { resume } from "./power.ts";
import type { Sandbox } from "./sandbox.ts";

/** From these a sandbox comes back by resuming; while it is being paused or resumed, that waits its turn. */
const ASLEEP: ReadonlySet<Phase> = new Set(["pausing", "paused", "resuming"]);

/**
 * Runs `work` on the guest of a sandbox that the caller may see. Rejects with `SANDBOX_NOT_FOUND`, with what kept a
 * paused sandbox from being resumed, and with `SANDBOX_GONE` when the sandbox ends meanwhile; `work` itself rejects with
 * `SANDBOX_PAUSED` where the caller declines to resume.
 */
export async function onGuest<T>(
  context: Context,
  caller: Caller,
  id: string,
  work: (sandbox: Sandbox) => Promise<T>,
): Promise<T> {
  return await tellingEnd(context, await awakeSandbox(context, caller, id), work);
}

/** A sandbox that the caller may see, resumed where it was paused and the caller does not decline. Rejects likewise. */
export async function awakeSandbox(context: Context, caller: Caller, id: string): Promise<Sandbox> {
  const sandbox = context.catalogue.find(caller, id);
  if (ASLEEP.has(sandbox.record.phase) && caller.declinesResume !== true) await wake(context, sandbox);
  return sandbox;
}

async function wake(context: Context, sandbox: Sandbox): Promise<void> {
  try {
    await resume(context, sandbox, "auto_resume");
  } catch (thrown) {
    const cause = asAgentError(thrown);
    const { code, details } = cause;
    throw new AgentError(code, `AutoResume on request: ${cause.message}`, { cause: cause.cause, details });
  }
}
