// The one way in which a sandbox changes its phase: the record, whatever belongs to the same transaction, and the event
// become durable together, and only then does anybody see the new phase.
import type { JsonObject } from "../contracts/json.ts";
import { asAgentError } from "../errors/agent-error.ts";
import type { Change, EventRow } from "../state/change.ts";
import type { Context } from "./context.ts";
import { eventOf, isLegalMove, type Phase, type Successor } from "./lifecycle.ts";
import { type SandboxRecord, toRow } from "./record.ts";
import type { Sandbox } from "./sandbox.ts";

export interface TransitionOptions {
  readonly patch?: Partial<SandboxRecord>;
  /** More of the same transaction; called with the record as it will be. */
  readonly changes?: (next: SandboxRecord) => readonly Change[];
  readonly attributes?: JsonObject;
}

export function eventRow(context: Context, record: SandboxRecord, action: string, attributes: JsonObject): EventRow {
  const { id, tenant } = record;
  return { atUnixMs: context.dependencies.clock.nowUnixMs(), sandboxId: id, tenant, action, attributes };
}

async function write(context: Context, sandbox: Sandbox, to: Phase, options: TransitionOptions): Promise<void> {
  const from = sandbox.record.phase;
  const { lastExit, network } = sandbox;
  const next: SandboxRecord = { ...sandbox.record, lastExit, network, ...options.patch, phase: to };
  const action = eventOf(from, to);
  const event = action === null ? null : eventRow(context, next, action, options.attributes ?? {});
  await context.dependencies.store.commit([
    ...(options.changes?.(next) ?? []),
    { put: "record", row: toRow(next) },
    ...(event === null ? [] : [{ append: "event" as const, row: event }]),
  ]);
  sandbox.record = next;
  if (from !== to) context.dependencies.log.info({ sandbox: sandbox.id, from, to, error: next.error }, "sandbox moved");
  if (event !== null) context.dependencies.publish(event);
}

/** Moves a sandbox that is in `from`. Rejects, with nothing changed, when the state cannot be written. */
export async function move<From extends Phase>(
  context: Context,
  sandbox: Sandbox,
  from: From,
  to: Successor<From>,
  options: TransitionOptions = {},
): Promise<void> {
  const phase = sandbox.record.phase;
  if (phase !== from || !isLegalMove(from, to)) throw new Error(`${sandbox.id}: illegal move ${phase} to ${to}`);
  await write(context, sandbox, to, options);
}

/** Writes a record that stays in its phase. */
export async function amend(context: Context, sandbox: Sandbox, options: TransitionOptions): Promise<void> {
  await write(context, sandbox, sandbox.record.phase, options);
}

/**
 * Moves to `failed` from wherever that is legal. What failed is released even when this cannot be written, so a refused
 * write is logged and the sandbox is failed in memory; the journal still leads a later start to the same releases.
 */
export async function fail(
  context: Context,
  sandbox: Sandbox,
  reason: string,
  changes: readonly Change[] = [],
): Promise<void> {
  const patch = { error: reason, identity: null, visiblePid: null, enforcement: null };
  if (!isLegalMove(sandbox.record.phase, "failed")) {
    throw new Error(`${sandbox.id}: illegal move ${sandbox.record.phase} to failed`);
  }
  try {
    await write(context, sandbox, "failed", { patch, changes: () => changes, attributes: { error: reason } });
  } catch (error) {
    const cause = asAgentError(error).message;
    context.dependencies.log.error({ sandbox: sandbox.id, reason, cause }, "a failure could not be written");
    sandbox.record = { ...sandbox.record, ...patch, phase: "failed" };
  }
}
