// Ending the instance of a sandbox and launching it again from a snapshot: same id, volume and sockets, another process.
// Runs in the sandbox's mailbox, while the sandbox stays ready for everybody outside.
import { limits } from "../config/limits.ts";
import type { Context } from "./context.ts";
import { acrossIncarnations } from "./executions/executions.ts";
import { disconnect } from "./network.ts";
import { runOwner } from "./record.ts";
import { discard, endInstance, instanceFields, launch, NO_INSTANCE, ownPlace, publish, stuckError } from "./run.ts";
import type { Live, Sandbox } from "./sandbox.ts";
import { amend } from "./transition.ts";

/**
 * Puts a sandbox back to a snapshot of `volume`. Resolves once its guest agent answers. Rejects with what kept it from
 * running; it has no instance then.
 */
export async function relaunch(context: Context, sandbox: Sandbox, volume: Live["volume"], tag: string): Promise<Live> {
  return await acrossIncarnations(context, sandbox, () => launchFrom(context, sandbox, volume, tag));
}

async function launchFrom(context: Context, sandbox: Sandbox, volume: Live["volume"], tag: string): Promise<Live> {
  await endInstance(context, sandbox, limits.discardBudgetMs);
  await disconnect(context, sandbox);
  const { changes, stuck } = await sandbox.run.releaseAll();
  const patch = { ...NO_INSTANCE, run: sandbox.record.run + 1 };
  await amend(context, sandbox, { patch, changes: () => changes });
  if (stuck !== null) throw stuckError(stuck);
  sandbox.run = context.ledger(runOwner(sandbox.record));
  const instance = await launch(context, sandbox, ownPlace(sandbox, volume), tag);
  try {
    await amend(context, sandbox, { patch: instanceFields(instance), changes: () => sandbox.run.settle() });
  } catch (error) {
    await discard(instance);
    throw error;
  }
  const live = { instance, volume };
  publish(context, sandbox, live);
  return live;
}
