// Snapshots of a sandbox: taken, listed, removed, restored. One of these, or a dry-run, at a time.
import { limits } from "../../config/limits.ts";
import type { Snapshot, Snapshots } from "../../contracts/backend.ts";
import type { Volume } from "../../contracts/storage.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Context } from "../context.ts";
import { tellingEnd } from "../ending.ts";
import { tellTime } from "../guest-clock.ts";
import { once } from "../once.ts";
import type { Caller, VmRecord } from "../operations.ts";
import { start } from "../power.ts";
import type { Live, Sandbox } from "../sandbox.ts";
import { move } from "../transition.ts";
import { restoreInPlace } from "./in-place.ts";
import type { SnapshotOperations } from "./operations.ts";
import { checkTag } from "./tag.ts";

export function snapshotOperations(context: Context): SnapshotOperations {
  const inMailbox = async <T>(
    caller: Caller,
    id: string,
    command: string,
    work: (sandbox: Sandbox, facet: Snapshots) => Promise<T>,
  ): Promise<T> => {
    const sandbox = context.catalogue.find(caller, id);
    const facet = facetOf(context, sandbox);
    assertFree(sandbox);
    return await sandbox.actor.run(command, async () => {
      if (context.catalogue.byId(sandbox.id) !== sandbox) throw new AgentError("SANDBOX_NOT_FOUND");
      return await tellingEnd(context, sandbox, () => work(sandbox, facet));
    });
  };
  const startFrom = async (caller: Caller, id: string, tag: string): Promise<VmRecord> => {
    const sandbox = context.catalogue.find(caller, id);
    const facet = facetOf(context, sandbox);
    assertFree(sandbox);
    // Before anything is started: a tag that is not there changes nothing.
    await requireTag(facet, null, await volumeOf(context, sandbox), tag);
    return await start(context, sandbox, tag);
  };
  return {
    takeSnapshot: (caller, id, tag, idempotency) =>
      inMailbox(caller, id, "snapshot", (sandbox, facet) =>
        once(context, idempotency, async () => {
          checkTag(tag);
          const live = requireLive(sandbox);
          const snapshot = await bounded(facet.save(live.instance, live.volume, tag), "taking a snapshot");
          if (sandbox.record.phase === "ready") await tellTime(context, sandbox.id, live);
          return snapshot;
        }),
      ),
    snapshots: (caller, id) =>
      inMailbox(caller, id, "list-snapshots", (sandbox, facet) => listOf(context, sandbox, facet)),
    removeSnapshot: (caller, id, tag) =>
      inMailbox(caller, id, "remove-snapshot", async (sandbox, facet) => {
        checkTag(tag);
        const volume = await volumeOf(context, sandbox);
        await bounded(facet.remove(sandbox.live?.instance ?? null, volume, tag), "removing a snapshot");
      }),
    restoreSnapshot: async (caller, id, tag) => {
      checkTag(tag);
      const { phase } = context.catalogue.find(caller, id).record;
      if (phase === "stopped" || phase === "failed") return await startFrom(caller, id, tag);
      return await inMailbox(caller, id, "restore", (sandbox, facet) => restore(context, sandbox, facet, tag));
    },
    startFromSnapshot: async (caller, id, tag) => {
      checkTag(tag);
      const { phase } = context.catalogue.find(caller, id).record;
      if (phase === "stopped" || phase === "failed") return await startFrom(caller, id, tag);
      throw new AgentError("RESTORE_NEEDS_STOP");
    },
  };
}

async function restore(context: Context, sandbox: Sandbox, facet: Snapshots, tag: string): Promise<VmRecord> {
  const live = requireLive(sandbox);
  await requireTag(facet, live.instance, live.volume, tag);
  if (sandbox.record.phase === "paused") return await restorePaused(context, sandbox, facet, live, tag);
  if (!(await restoreInPlace(context, sandbox, facet, live, tag))) throw new AgentError("RESTORE_NEEDS_STOP");
  return context.render(sandbox);
}

/** What was put back runs, so a paused sandbox goes the way of one that is resumed. */
async function restorePaused(context: Context, sandbox: Sandbox, facet: Snapshots, live: Live, tag: string) {
  if (facet.restores !== "in-place") throw new AgentError("RESTORE_NEEDS_STOP");
  await move(context, sandbox, "paused", "resuming");
  try {
    await restoreInPlace(context, sandbox, facet, live, tag);
  } catch (error) {
    if (sandbox.record.phase === "resuming") await move(context, sandbox, "resuming", "paused");
    throw error;
  }
  // Executions that ran before have ended with what they ran in.
  sandbox.adoptsOnResume = false;
  await move(context, sandbox, "resuming", "ready", {
    patch: { pausedAtUnixMs: null },
    attributes: { reason: "restore" },
  });
  return context.render(sandbox);
}

export function facetOf(context: Context, sandbox: Sandbox): Snapshots {
  const { snapshots } = context.backend(sandbox.record.backend);
  if (snapshots === undefined) throw new AgentError("NOT_SUPPORTED", "this backend has no snapshots");
  return snapshots;
}

function assertFree(sandbox: Sandbox): void {
  if (sandbox.dryRun !== null) throw new AgentError("DRY_RUN_BUSY");
}

async function listOf(context: Context, sandbox: Sandbox, facet: Snapshots): Promise<readonly Snapshot[]> {
  const volume = await volumeOf(context, sandbox);
  return await bounded(facet.list(sandbox.live?.instance ?? null, volume), "listing snapshots");
}

async function requireTag(facet: Snapshots, instance: Live["instance"] | null, volume: Volume, tag: string) {
  const known = await bounded(facet.list(instance, volume), "listing snapshots");
  if (!known.some((snapshot) => snapshot.tag === tag)) throw new AgentError("SNAPSHOT_NOT_FOUND");
}

async function volumeOf(context: Context, sandbox: Sandbox): Promise<Volume> {
  const volume = sandbox.live?.volume ?? (await context.dependencies.storage.openVolume(sandbox.id));
  if (volume === null) throw new AgentError("INVALID_STATE", "the disk of this sandbox is gone");
  return volume;
}

/** A sandbox that runs, or is paused. */
function requireLive({ record, live }: Sandbox): Live {
  if ((record.phase === "ready" || record.phase === "paused") && live !== null) return live;
  throw new AgentError("INVALID_STATE", `the sandbox is ${record.phase}`, { details: { state: record.phase } });
}

function bounded<T>(work: Promise<T>, what: string): Promise<T> {
  return withDeadline(work, limits.snapshotTimeoutMs, what);
}
