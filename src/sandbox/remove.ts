// Removing a sandbox: journalled first, so that a crash rolls it forward; the record goes last, in the transaction that
// also quarantines its leases. Anything may be removed at any moment, and again when something got stuck.
import { limits } from "../config/limits.ts";
import type { Change } from "../state/change.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Context } from "./context.ts";
import { goneChanges } from "./create.ts";
import type { Leases } from "./leases.ts";
import { forgetNetwork } from "./network.ts";
import { beginKey, finishKey, forgetKey, keyError } from "./once.ts";
import type { IdempotentRequest } from "./operations.ts";
import { interruptDryRun } from "./power.ts";
import { endInstance, NO_INSTANCE, releaseRun, stuckError, stuckMessage } from "./run.ts";
import type { Sandbox } from "./sandbox.ts";
import { amend, eventRow, move } from "./transition.ts";

/**
 * Resolves when the record and everything that the sandbox held are gone. Rejects with `RELEASE_FAILED` when something
 * is stuck; the same call tries again.
 */
export async function remove(context: Context, sandbox: Sandbox, idempotency?: IdempotentRequest): Promise<void> {
  interruptDryRun(sandbox);
  const work = (): Promise<void> => removeNow(context, sandbox, idempotency);
  // A removal with a key of its own must leave its own reply, so it does not share another's outcome.
  if (idempotency === undefined) await sandbox.actor.join("remove", work);
  else await sandbox.actor.run("remove", work);
}

/** The first write of a removal. A sandbox whose earlier removal got stuck is in `removing` already. */
async function journal(context: Context, sandbox: Sandbox, idempotency: IdempotentRequest | undefined): Promise<void> {
  const options = { patch: { error: null }, changes: () => beginKey(context, idempotency) };
  const { phase } = sandbox.record;
  try {
    if (phase === "removing") await amend(context, sandbox, options);
    else await move(context, sandbox, phase, "removing", options);
  } catch (error) {
    throw keyError(error);
  }
}

async function removeNow(
  context: Context,
  sandbox: Sandbox,
  idempotency: IdempotentRequest | undefined,
): Promise<void> {
  const { store, crashPoint, publish } = context.dependencies;
  if (context.catalogue.byId(sandbox.id) !== sandbox) {
    // An earlier command in the mailbox removed it, which is what this caller asked for too.
    if (idempotency !== undefined)
      await store.commit([...beginKey(context, idempotency), ...finishKey(idempotency, null)]);
    return;
  }
  await journal(context, sandbox, idempotency);
  await crashPoint("remove.journalled");
  await endInstance(context, sandbox, limits.discardBudgetMs);
  await crashPoint("remove.ended");
  // Nothing may write below the directory that goes now.
  await sandbox.executions?.close(new AgentError("SANDBOX_GONE", "the sandbox was removed"));
  if (sandbox.revert !== null) {
    sandbox.leftovers.push(sandbox.revert.ledger);
    sandbox.revert = null;
  }
  const run = await releaseRun(context, sandbox);
  const life = run.stuck === null ? await sandbox.life.releaseAll() : { changes: [], stuck: run.stuck };
  await crashPoint("remove.released");
  const changes: Change[] = [...run.changes, ...life.changes];
  if (life.stuck !== null) {
    changes.push(...forgetKey(idempotency));
    const patch = { ...NO_INSTANCE, error: stuckMessage(life.stuck) };
    await amend(context, sandbox, { patch, changes: () => changes });
    throw stuckError(life.stuck);
  }
  const event = eventRow(context, sandbox.record, "sandbox.removed", {});
  await store.commit([
    ...changes,
    ...goneChanges(sandbox),
    ...finishKey(idempotency, null),
    { append: "event", row: event },
  ]);
  context.leases.quarantine(sandbox.record.leases as Leases);
  context.catalogue.remove(sandbox);
  await forgetNetwork(context, sandbox.id);
  publish(event);
  await crashPoint("remove.gone");
}
