// Start, stop, pause and resume of one sandbox, each run inside its mailbox. A command that finds its work done answers
// the record; one that the phase does not allow is `INVALID_STATE`.
import { limits } from "../config/limits.ts";
import type { Volume } from "../contracts/storage.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Context } from "./context.ts";
import { tellingEnd } from "./ending.ts";
import { executionsOf } from "./executions/executions.ts";
import { tellTime } from "./guest-clock.ts";
import type { VmRecord } from "./operations.ts";
import { runOwner } from "./record.ts";
import { dropExposures } from "./ports/exposures.ts";
import {
  discard,
  endInstance,
  instanceFields,
  launch,
  NO_INSTANCE,
  ownPlace,
  publish,
  releaseRun,
  stuckError,
  stuckMessage,
} from "./run.ts";
import type { Sandbox } from "./sandbox.ts";
import { forget, wasTaken } from "./snapshots/revert.ts";
import { amend, fail, move } from "./transition.ts";

function assertPresent(context: Context, sandbox: Sandbox): void {
  if (context.catalogue.byId(sandbox.id) !== sandbox) throw new AgentError("SANDBOX_NOT_FOUND");
}

function refuse(sandbox: Sandbox, verb: string): AgentError {
  const { phase } = sandbox.record;
  return new AgentError("INVALID_STATE", `a sandbox that is ${phase} cannot be ${verb}`, { details: { state: phase } });
}

/** A dry-run that has the mailbox would make whoever ends the sandbox wait for its command. */
export function interruptDryRun({ dryRun }: Sandbox): void {
  if (dryRun?.inMailbox !== true) return;
  dryRun.abort(new AgentError("SANDBOX_GONE", "the sandbox was stopped during the dry-run"));
}

/** Ends the processes and launches again. */
export async function restart(context: Context, sandbox: Sandbox): Promise<VmRecord> {
  await stop(context, sandbox);
  return await start(context, sandbox);
}

/** Releases what is left of an earlier run, so that nothing of it meets the next. */
async function finishRelease(context: Context, sandbox: Sandbox): Promise<void> {
  if (sandbox.run.isEmpty && sandbox.leftovers.length === 0) return;
  const { changes, stuck } = await releaseRun(context, sandbox);
  await amend(context, sandbox, { changes: () => changes });
  if (stuck !== null) throw stuckError(stuck);
}

/** Ends the processes; the workspace, its uid and the record stay. */
export async function stop(context: Context, sandbox: Sandbox): Promise<VmRecord> {
  interruptDryRun(sandbox);
  return await sandbox.actor.join("stop", async () => {
    assertPresent(context, sandbox);
    const { phase } = sandbox.record;
    if (phase === "stopped" || phase === "failed") {
      await finishRelease(context, sandbox);
      return context.render(sandbox);
    }
    if (phase !== "ready" && phase !== "stopping") throw refuse(sandbox, "stopped");
    if (phase === "ready") await move(context, sandbox, "ready", "stopping");
    await context.dependencies.crashPoint("stop.journalled");
    await stopRun(context, sandbox, null);
    return context.render(sandbox);
  });
}

/** Ends the processes because of `reason`, which the record shows, at once. Does nothing when they do not run. */
export async function stopWith(context: Context, sandbox: Sandbox, reason: string): Promise<void> {
  await sandbox.actor.tell("stop-with-reason", async () => {
    if (context.catalogue.byId(sandbox.id) !== sandbox || sandbox.record.phase !== "ready") return;
    await move(context, sandbox, "ready", "stopping", { patch: { error: reason }, attributes: { reason } });
    await endInstance(context, sandbox, limits.discardBudgetMs);
    await stopRun(context, sandbox, reason);
  });
}

/** From `stopping` to `stopped`, or to `failed` when something of the run is stuck. `reason` goes into the record. */
export async function stopRun(context: Context, sandbox: Sandbox, reason: string | null): Promise<void> {
  const { crashPoint } = context.dependencies;
  await endInstance(context, sandbox, limits.stopBudgetMs);
  await crashPoint("stop.ended");
  const { changes, stuck } = await releaseRun(context, sandbox);
  await crashPoint("stop.released");
  if (stuck !== null) {
    await fail(context, sandbox, stuckMessage(stuck), changes);
    throw stuckError(stuck);
  }
  await move(context, sandbox, "stopping", "stopped", {
    patch: { ...NO_INSTANCE, error: reason },
    changes: () => changes,
  });
}

/**
 * Launches a stopped or failed sandbox again on its own workspace, or from a snapshot of it. Rejects with the backend's
 * error; it is failed then.
 */
export async function start(context: Context, sandbox: Sandbox, snapshot?: string): Promise<VmRecord> {
  context.assertOpen();
  return await sandbox.actor.join(snapshot === undefined ? "start" : `start-from ${snapshot}`, async () => {
    assertPresent(context, sandbox);
    const { phase } = sandbox.record;
    if (phase === "ready") return context.render(sandbox);
    if (phase !== "stopped" && phase !== "failed") throw refuse(sandbox, "started");
    const startedAt = performance.now();
    await finishRelease(context, sandbox);
    await startRun(context, sandbox, snapshot);
    if (sandbox.revert !== null) await forget(context, sandbox, sandbox.revert);
    context.dependencies.metrics.started(performance.now() - startedAt);
    return context.render(sandbox);
  });
}

async function startRun(context: Context, sandbox: Sandbox, snapshot: string | undefined): Promise<void> {
  const { storage, crashPoint, clock } = context.dependencies;
  const { phase } = sandbox.record;
  if (phase !== "stopped" && phase !== "failed") throw refuse(sandbox, "started");
  const volume = await storage.openVolume(sandbox.id);
  if (volume === null) throw new AgentError("INVALID_STATE", "the workspace of this sandbox is gone");
  const from = snapshot ?? (await unfinishedDryRun(context, sandbox, volume));
  const { run, incarnation } = sandbox.record;
  const patch = { run: run + 1, incarnation: from === undefined ? incarnation : incarnation + 1, error: null };
  await move(context, sandbox, phase, "starting", { patch });
  sandbox.run = context.ledger(runOwner(sandbox.record));
  await crashPoint("start.journalled");
  try {
    const instance = await launch(context, sandbox, ownPlace(sandbox, volume), from);
    await crashPoint("start.launched");
    try {
      await move(context, sandbox, "starting", "ready", {
        patch: { ...instanceFields(instance), readyAtUnixMs: clock.nowUnixMs() },
        changes: () => sandbox.run.settle(),
      });
    } catch (error) {
      await discard(instance);
      throw error;
    }
    publish(context, sandbox, { instance, volume });
    if (from !== undefined) await executionsOf(context, sandbox).reverted();
  } catch (error) {
    const { changes, stuck } = await releaseRun(context, sandbox);
    const reason = asAgentError(error).message;
    await fail(context, sandbox, stuck === null ? reason : `${reason}; ${stuckMessage(stuck)}`, changes);
    throw error;
  }
  await crashPoint("start.ready");
}

/** The snapshot of a dry-run whose end the agent did not live to see: starting puts the sandbox back to it. */
async function unfinishedDryRun(context: Context, sandbox: Sandbox, volume: Volume): Promise<string | undefined> {
  const { revert } = sandbox;
  return revert !== null && (await wasTaken(context, sandbox, volume, revert.tag)) ? revert.tag : undefined;
}

/**
 * Freezes a sandbox in place. `SANDBOX_BUSY` while commands run, unless `force` lets them freeze with it;
 * `NOT_SUPPORTED` where the backend cannot.
 */
export async function pause(
  context: Context,
  sandbox: Sandbox,
  { force = false }: { readonly force?: boolean } = {},
): Promise<VmRecord> {
  const facet = context.backend(sandbox.record.backend).pause;
  if (facet === undefined) throw new AgentError("NOT_SUPPORTED");
  return await sandbox.actor.join(force ? "pause-by-force" : "pause", async () => {
    assertPresent(context, sandbox);
    const { crashPoint, clock } = context.dependencies;
    const { live } = sandbox;
    if (sandbox.record.phase === "paused") return context.render(sandbox);
    if (sandbox.record.phase !== "ready" || live === null) throw refuse(sandbox, "paused");
    if ((sandbox.runningCommands > 0 && !force) || sandbox.dryRun !== null) {
      throw new AgentError("SANDBOX_BUSY", "a command is running in the sandbox");
    }
    await move(context, sandbox, "ready", "pausing", { attributes: { reason: "pause" } });
    await crashPoint("pause.journalled");
    try {
      const pausing = () => withDeadline(facet.pause(live.instance), limits.stopBudgetMs, "pausing");
      await tellingEnd(context, sandbox, pausing);
    } catch (error) {
      await withDeadline(facet.resume(live.instance), limits.stopBudgetMs, "thawing").then(
        () => move(context, sandbox, "pausing", "ready"),
        () => fail(context, sandbox, "the sandbox was left frozen"),
      );
      throw error;
    }
    await crashPoint("pause.frozen");
    await dropExposures(sandbox);
    await move(context, sandbox, "pausing", "paused", { patch: { pausedAtUnixMs: clock.nowUnixMs() } });
    return context.render(sandbox);
  });
}

/** Thaws a paused sandbox. On a sandbox that is ready it changes nothing. `reason` is told with the event. */
export async function resume(
  context: Context,
  sandbox: Sandbox,
  reason: "resume" | "auto_resume" = "resume",
): Promise<VmRecord> {
  const facet = context.backend(sandbox.record.backend).pause;
  if (facet === undefined) throw new AgentError("NOT_SUPPORTED");
  return await sandbox.actor.join("resume", async () => {
    assertPresent(context, sandbox);
    const { live } = sandbox;
    if (sandbox.record.phase === "ready") return context.render(sandbox);
    if (sandbox.record.phase !== "paused" || live === null) throw refuse(sandbox, "resumed");
    await move(context, sandbox, "paused", "resuming");
    await context.dependencies.crashPoint("resume.journalled");
    try {
      const resuming = () => withDeadline(facet.resume(live.instance), limits.stopBudgetMs, "resuming");
      await tellingEnd(context, sandbox, resuming);
    } catch (error) {
      await move(context, sandbox, "resuming", "paused");
      throw error;
    }
    await context.dependencies.crashPoint("resume.thawed");
    await tellTime(context, sandbox.id, live);
    if (sandbox.adoptsOnResume) await sandbox.executions?.adopt();
    sandbox.adoptsOnResume = false;
    await move(context, sandbox, "resuming", "ready", {
      patch: { pausedAtUnixMs: null },
      attributes: { reason },
    });
    return context.render(sandbox);
  });
}
