// Taking over a sandbox that an earlier agent process left running, or recording how it ended.
import { readFile } from "node:fs/promises";
import { limits } from "../config/limits.ts";
import { asAgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Context } from "./context.ts";
import { executionsOf } from "./executions/executions.ts";
import { tellTime } from "./guest-clock.ts";
import type { Phase } from "./lifecycle.ts";
import { restoreExposures } from "./ports/exposures.ts";
import { stopRun } from "./power.ts";
import { instanceFields, launchRequest, ownPlace, publish, releaseRun, stuckMessage } from "./run.ts";
import type { Live, Sandbox } from "./sandbox.ts";
import { revert } from "./snapshots/revert.ts";
import { amend, fail, move } from "./transition.ts";

/** What became of a sandbox at reconcile. */
export type Fate = "adopted" | "rolled-back" | "removed" | "stopped" | "failed" | "kept" | "stuck";

/** For a sandbox that had an instance when the agent ended: `ready`, `pausing`, `paused` or `resuming`. */
export async function adoptOrEnd(context: Context, sandbox: Sandbox): Promise<Fate> {
  const found = await adopt(context, sandbox);
  if (found.live === null && isBeingPutBack(sandbox)) return await putBack(context, sandbox);
  if (found.live === null) return await endedAway(context, sandbox, found.reason);
  const { live } = found;
  await settlePause(context, sandbox, live);
  const { enforcement, ...fields } = instanceFields(live.instance);
  // What confines the sandbox was decided at its launch; an adopted instance need not know it.
  await amend(context, sandbox, {
    patch: { ...fields, ...(enforcement === null ? {} : { enforcement }) },
    changes: () => sandbox.run.settle(),
  });
  publish(context, sandbox, live);
  const executions = executionsOf(context, sandbox);
  if (sandbox.record.phase === "paused") sandbox.adoptsOnResume = true;
  else await executions.adopt();
  if (sandbox.revert !== null) await revert(context, sandbox, live.volume, sandbox.revert);
  await restoreExposures(context, sandbox);
  return "adopted";
}

/** The agent ended between the old process of a dry-run and the one from its snapshot. */
function isBeingPutBack({ record, revert: pending }: Sandbox): boolean {
  return pending !== null && record.phase === "ready" && record.identity === null;
}

async function putBack(context: Context, sandbox: Sandbox): Promise<Fate> {
  const volume = await context.dependencies.storage.openVolume(sandbox.id);
  if (volume === null || sandbox.revert === null) return await endedAway(context, sandbox, "the workspace is gone");
  await revert(context, sandbox, volume, sandbox.revert);
  return "adopted";
}

type Found = { readonly live: Live } | { readonly live: null; readonly reason: string };

const ENDED_AWAY = "the sandbox ended while the agent was away";

async function adopt(context: Context, sandbox: Sandbox): Promise<Found> {
  const { dependencies } = context;
  const { identity, backend: backendId } = sandbox.record;
  const gone = (reason: string): Found => ({ live: null, reason });
  try {
    const backend = context.backend(backendId);
    const volume = await dependencies.storage.openVolume(sandbox.id);
    if (volume === null) return gone("the workspace is gone");
    if (identity === null || backend.adopt === undefined) return gone(ENDED_AWAY);
    const request = { ...launchRequest(context, sandbox, ownPlace(sandbox, volume)), identity };
    const instance = await withDeadline(backend.adopt(request), limits.adoptTimeoutMs, "adopting");
    if (instance !== null) return { live: { instance, volume } };
    const end = await withDeadline(backend.endOf?.(request) ?? Promise.resolve(null), limits.adoptTimeoutMs, "asking");
    return gone(end === null ? ENDED_AWAY : `${ENDED_AWAY}: ${end.reason}`);
  } catch (error) {
    const cause = asAgentError(error).message;
    dependencies.log.warn({ sandbox: sandbox.id, error: cause }, "a sandbox could not be adopted");
    return gone(`the sandbox could not be adopted: ${cause}`);
  }
}

/** A pause or resume that was cut ends where the guest certainly runs; a finished pause stays. */
async function settlePause(context: Context, sandbox: Sandbox, live: Live): Promise<void> {
  const { phase } = sandbox.record;
  if (phase !== "pausing" && phase !== "resuming") return;
  const facet = context.backend(sandbox.record.backend).pause;
  await facet?.resume(live.instance);
  await tellTime(context, sandbox.id, live);
  await move(context, sandbox, phase, "ready", { patch: { pausedAtUnixMs: null } });
}

/** Gone after a reboot is `stopped`, because nothing went wrong in the sandbox; gone otherwise is `failed`. */
async function endedAway(context: Context, sandbox: Sandbox, reason: string): Promise<Fate> {
  const phase: Phase = sandbox.record.phase;
  if (phase === "ready" && sandbox.record.identity?.bootId !== (await bootId())) {
    await move(context, sandbox, "ready", "stopping");
    await stopRun(context, sandbox, "the host was restarted");
    return "stopped";
  }
  await fail(context, sandbox, reason);
  const { changes, stuck } = await releaseRun(context, sandbox);
  const error = stuck === null ? reason : `${reason}; ${stuckMessage(stuck)}`;
  await amend(context, sandbox, { patch: { error }, changes: () => changes });
  return stuck === null ? "failed" : "stuck";
}

async function bootId(): Promise<string> {
  return (await readFile("/proc/sys/kernel/random/boot_id", "utf8")).trim();
}
