// Letting go of every sandbox at the end of the agent: nothing is stopped, so that the next agent process can adopt it.
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Context } from "./context.ts";
import type { Rounds } from "./rounds.ts";
import type { Sandbox } from "./sandbox.ts";

/** Ends every dry-run soon; its caller is told that the agent is shutting down. */
export function abortDryRuns(context: Context): void {
  for (const { dryRun } of context.catalogue.all()) dryRun?.abort(new AgentError("SHUTTING_DOWN"));
}

/** Every reader of an execution is told to come back; the executions go on. */
export function dismissReaders(context: Context): void {
  for (const { executions } of context.catalogue.all()) executions?.dismiss(new AgentError("SHUTTING_DOWN"));
}

/**
 * Waits for the commands in every mailbox and the end of dry-runs, then detaches. `context.closing` is set. What is not done
 * within `budgetMs` is left to the journal: the next start finds and finishes it.
 */
export async function letGo(context: Context, rounds: readonly Rounds[], budgetMs: number): Promise<void> {
  const { log } = context.dependencies;
  const sandboxes = context.catalogue.all();
  const quiet = Promise.all([...rounds.map((each) => each.stop()), ...sandboxes.map(settle)]);
  await withDeadline(quiet, budgetMs / 2, "waiting for operations").catch((error: unknown) => {
    log.warn({ error: asAgentError(error).message }, "operations were cut by the shutdown");
  });
  await context.exposed.closeAll();
  await Promise.all(context.catalogue.all().map((sandbox) => detach(context, sandbox, budgetMs / 2)));
}

async function settle(sandbox: Sandbox): Promise<void> {
  await sandbox.dryRun?.done;
  await sandbox.actor.idle();
}

async function detach(context: Context, sandbox: Sandbox, timeoutMs: number): Promise<void> {
  const { live } = sandbox;
  sandbox.live = null;
  try {
    const closed = sandbox.executions?.close(new AgentError("SHUTTING_DOWN")) ?? Promise.resolve();
    await withDeadline(closed, timeoutMs, "storing the output of executions");
    if (live === null) return;
    await withDeadline(live.instance.detach(), timeoutMs, "letting go of an instance");
  } catch (error) {
    context.dependencies.log.warn({ sandbox: sandbox.id, error: asAgentError(error).message }, "detach failed");
  }
}
