// The snapshot of a dry-run: journalled before it is taken, and forgotten only when the sandbox is back at it. An agent
// that finds one in its journal puts the sandbox back, now if it runs, else at its next start.
import { rm } from "node:fs/promises";
import { join } from "node:path";
import { limits } from "../../config/limits.ts";
import type { Instance, Snapshot } from "../../contracts/backend.ts";
import type { Release, Resource } from "../../contracts/resource.ts";
import type { Volume } from "../../contracts/storage.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Context } from "../context.ts";
import { newsOfEnd } from "../ending.ts";
import type { Ledger } from "../ledger.ts";
import { relaunch } from "../relaunch.ts";
import { stuckMessage } from "../run.ts";
import type { Sandbox } from "../sandbox.ts";
import { fail } from "../transition.ts";
import { restoreInPlace } from "./in-place.ts";
import { facetOf } from "./snapshots.ts";

export const DRY_RUN_SNAPSHOT = "dry-run-snapshot";

/** What a sandbox must be put back to, and the journal that says so. */
export interface PendingRevert {
  readonly tag: string;
  readonly ledger: Ledger;
}

export function snapshotResource(sandbox: Sandbox, tag: string): Resource {
  return { kind: DRY_RUN_SNAPSHOT, name: `${sandbox.id}/${tag}`, data: { sandbox: sandbox.id, tag } };
}

/** The revert that a journal found after a restart stands for, or null when it is of something else. */
export function pendingRevertOf(ledger: Ledger): PendingRevert | null {
  const row = ledger.held().find(({ kind }) => kind === DRY_RUN_SNAPSHOT);
  return row === undefined ? null : { tag: String(row.data.tag), ledger };
}

/** Where the listing from before a dry-run lies meanwhile. */
export function listingPath(context: Context, sandboxId: string, tag: string): string {
  return join(context.places.instanceDir(sandboxId), `${tag}.json`);
}

/** Removes the snapshot and the listing. Those of a sandbox that is being removed go with it. */
export function releaseSnapshot(context: Context): Release {
  return async ({ data }) => {
    const sandbox = context.catalogue.byId(String(data.sandbox));
    if (sandbox === undefined || sandbox.record.phase === "removing") return;
    const tag = String(data.tag);
    await rm(listingPath(context, sandbox.id, tag), { force: true });
    const volume = sandbox.live?.volume ?? (await context.dependencies.storage.openVolume(sandbox.id));
    if (volume === null) return;
    const removing = facetOf(context, sandbox).remove(sandbox.live?.instance ?? null, volume, tag);
    await withDeadline(removing, limits.snapshotTimeoutMs, "removing a snapshot").catch((error: unknown) => {
      if (!(error instanceof AgentError && error.code === "SNAPSHOT_NOT_FOUND")) throw error;
    });
  };
}

/**
 * Puts the sandbox back, in its mailbox. Rejects with `DRY_RUN_NOT_REVERTED` when it is not; it is failed then, and is
 * put back when it is started. Rejects with `RELEASE_FAILED` when it is back and the snapshot could not be removed.
 */
export async function revert(
  context: Context,
  sandbox: Sandbox,
  volume: Volume,
  pending: PendingRevert,
): Promise<void> {
  try {
    await putBack(context, sandbox, volume, pending.tag);
  } catch (error) {
    const { message } = asAgentError(error);
    const reason = `the changes of a dry-run may still be in the sandbox: ${message}`;
    if (sandbox.record.phase === "ready") await fail(context, sandbox, reason);
    throw new AgentError("DRY_RUN_NOT_REVERTED", reason, { cause: error });
  }
  await context.dependencies.crashPoint("dry-run.reverted");
  await forget(context, sandbox, pending);
}

async function putBack(context: Context, sandbox: Sandbox, volume: Volume, tag: string): Promise<void> {
  const facet = facetOf(context, sandbox);
  const { live } = sandbox;
  // An agent that ended before the snapshot was taken had not run the command either.
  if (!(await wasTaken(context, sandbox, volume, tag))) return;
  if (live !== null && (await restoreInPlace(context, sandbox, facet, live, tag))) return;
  await relaunch(context, sandbox, volume, tag);
}

/** Whether the snapshot of a dry-run is there; its journal row is older than itself. */
export async function wasTaken(context: Context, sandbox: Sandbox, volume: Volume, tag: string): Promise<boolean> {
  const { live } = sandbox;
  const list = (instance: Instance | null): Promise<readonly Snapshot[]> =>
    withDeadline(facetOf(context, sandbox).list(instance, volume), limits.snapshotTimeoutMs, "listing snapshots");
  const known = await list(live?.instance ?? null).catch(async (error: unknown) => {
    // One that died under its command cannot be asked, but its disk can be looked at.
    if (live === null || (await newsOfEnd(live.instance)) === null) throw error;
    return await list(null);
  });
  return known.some((snapshot) => snapshot.tag === tag);
}

/** The sandbox is back, or has been put to another snapshot: removes the one of the dry-run. */
export async function forget(context: Context, sandbox: Sandbox, { ledger }: PendingRevert): Promise<void> {
  sandbox.revert = null;
  const { changes, stuck } = await ledger.releaseAll();
  if (changes.length > 0) await context.dependencies.store.commit(changes);
  if (stuck === null) return;
  sandbox.leftovers.push(ledger);
  throw new AgentError("RELEASE_FAILED", `the snapshot of the dry-run could not be removed: ${stuckMessage(stuck)}`);
}
