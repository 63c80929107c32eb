// Putting a running instance back to a snapshot, which the backend does by itself: its memory, its disk, and with them the
// guest agent and the executions that it knows.
import { limits } from "../../config/limits.ts";
import type { Snapshots } from "../../contracts/backend.ts";
import type { Context } from "../context.ts";
import { acrossIncarnations } from "../executions/executions.ts";
import type { Live, Sandbox } from "../sandbox.ts";
import { withDeadline } from "../../errors/deadline.ts";
import { bringToPresent } from "./present.ts";

/** Resolves with true once the guest agent answers again, with false when the backend has to relaunch instead. */
export async function restoreInPlace(
  context: Context,
  sandbox: Sandbox,
  facet: Snapshots,
  { instance, volume }: Live,
  tag: string,
): Promise<boolean> {
  const restore = facet.restore?.bind(facet);
  if (facet.restores !== "in-place" || restore === undefined) return false;
  const { settings } = context.dependencies;
  await acrossIncarnations(context, sandbox, async () => {
    await withDeadline(restore(instance, volume, tag), limits.snapshotTimeoutMs, "restoring a snapshot");
    const answering = withDeadline(instance.channel(), settings.readyTimeoutMs, "waiting for the guest agent");
    await bringToPresent(context, sandbox.id, await answering);
  });
  return true;
}
