// After a start, before anything listens: what the journal and the records say is made true. Sandboxes that live are
// adopted by their recorded identity; a create that was cut is rolled back, a removal rolled forward; everything else is
// released by its recorded name. Nothing is ever searched for by pattern.
import { readdir } from "node:fs/promises";
import { atOnce } from "../contracts/at-once.ts";
import { limits } from "../config/limits.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { Change, ResourceRow, StoredState } from "../state/change.ts";
import { adoptOrEnd, type Fate } from "./adopt.ts";
import type { Context } from "./context.ts";
import { undo } from "./create.ts";
import { storedEnvironment } from "./environment.ts";
import type { Ledger, StuckResource } from "./ledger.ts";
import { repairNetworks } from "./network.ts";
import { stopRun } from "./power.ts";
import { fromRow, lifeOwner, runOwner, type SandboxRecord } from "./record.ts";
import { remove } from "./remove.ts";
import { releaseRun } from "./run.ts";
import { Sandbox } from "./sandbox.ts";
import { pendingRevertOf } from "./snapshots/revert.ts";
import { amend, move } from "./transition.ts";

export interface ReconcileReport {
  /** Sandbox ids by what became of them. */
  readonly fates: ReadonlyMap<Fate, readonly string[]>;
  /** Directories under the instances directory that no record knows; they are reported and never touched. */
  readonly orphanDirectories: readonly string[];
  /** Journal rows whose record is gone and that could not be released. */
  readonly stuck: readonly StuckResource[];
}

/** Rejects with `STATE_NEWER` or `STATE_UNAVAILABLE` when the state cannot be understood; the agent must not start then. */
export async function reconcile(context: Context): Promise<ReconcileReport> {
  const state = await context.dependencies.store.load();
  const forgotten = state.inFlight.map((hash): Change => ({ remove: "idempotency", hash }));
  if (forgotten.length > 0) await context.dependencies.store.commit(forgotten);
  await context.leases.restore(state.leases);
  context.pools.restore(state.pools, state.secrets);
  const rows = rowsByOwner(state.resources);
  const sandboxes = state.records.map((row) => rebuild(context, fromRow(row), state, rows));
  for (const sandbox of sandboxes) context.catalogue.add(sandbox);
  await repairNetworks(context, sandboxes);
  const stuck = await releaseOrphans(context, rows);
  const fates = await settleAll(context, sandboxes);
  await releaseOrphanLeases(context, state);
  const orphanDirectories = await findOrphanDirectories(context);
  report(context, fates, orphanDirectories, stuck);
  return { fates, orphanDirectories, stuck };
}

function rowsByOwner(rows: readonly ResourceRow[]): Map<string, ResourceRow[]> {
  return Map.groupBy(rows, (row) => row.owner);
}

/** Takes the sandbox's rows out of `rows`; what stays there belongs to nobody. */
function rebuild(
  context: Context,
  record: SandboxRecord,
  state: StoredState,
  rows: Map<string, ResourceRow[]>,
): Sandbox {
  const token = state.secrets.find(({ id, name }) => id === record.id && name === "guest-token")?.value;
  if (token === undefined) throw new AgentError("STATE_UNAVAILABLE", `the state has no guest token for ${record.id}`);
  const environment = storedEnvironment(state.secrets, record.id);
  const take = (owner: string): Ledger => {
    const ledger = context.ledger(owner, rows.get(owner));
    rows.delete(owner);
    return ledger;
  };
  const sandbox = new Sandbox(record, token, environment, take(lifeOwner(record)), take(runOwner(record)));
  const prefix = `${lifeOwner(record)}/`;
  for (const owner of [...rows.keys()]) {
    if (!owner.startsWith(prefix)) continue;
    const ledger = take(owner);
    const pending = pendingRevertOf(ledger);
    if (pending === null) sandbox.leftovers.push(ledger);
    else sandbox.revert = pending;
  }
  return sandbox;
}

/** Bounded parallel, because adopting waits for guest agents. */
async function settleAll(context: Context, sandboxes: readonly Sandbox[]): Promise<Map<Fate, string[]>> {
  const fates = new Map<Fate, string[]>();
  await atOnce(limits.adoptionsAtOnceMax, sandboxes, async (sandbox) => {
    const fate = await settle(context, sandbox);
    fates.set(fate, [...(fates.get(fate) ?? []), sandbox.id]);
  });
  return fates;
}

async function settle(context: Context, sandbox: Sandbox): Promise<Fate> {
  try {
    return await settleByPhase(context, sandbox);
  } catch (error) {
    const { message } = asAgentError(error);
    context.dependencies.log.error({ sandbox: sandbox.id, error: message }, "a sandbox could not be reconciled");
    return "stuck";
  }
}

async function settleByPhase(context: Context, sandbox: Sandbox): Promise<Fate> {
  await discardLeftovers(context, sandbox);
  const { phase, readyAtUnixMs } = sandbox.record;
  switch (phase) {
    case "creating":
      return await rollBack(context, sandbox);
    case "starting":
      return readyAtUnixMs === null ? await rollBack(context, sandbox) : await cutStart(context, sandbox);
    case "stopping":
      // A stop for a reason wrote the reason with its first step.
      await stopRun(context, sandbox, sandbox.record.error);
      return "stopped";
    case "removing":
      await remove(context, sandbox);
      return "removed";
    case "stopped":
    case "failed": {
      const { changes, stuck } = await releaseRun(context, sandbox);
      if (changes.length > 0) await amend(context, sandbox, { changes: () => changes });
      return stuck === null ? "kept" : "stuck";
    }
    default:
      return await adoptOrEnd(context, sandbox);
  }
}

/** Copies of dry-runs end with the agent that made them. */
async function discardLeftovers(context: Context, sandbox: Sandbox): Promise<void> {
  for (const ledger of [...sandbox.leftovers]) {
    const { changes, stuck } = await ledger.releaseAll();
    if (changes.length > 0) await context.dependencies.store.commit(changes);
    if (stuck === null) sandbox.leftovers = sandbox.leftovers.filter((other) => other !== ledger);
  }
}

async function rollBack(context: Context, sandbox: Sandbox): Promise<Fate> {
  await undo(context, sandbox, new AgentError("INTERNAL", "the agent ended while the sandbox was being created"));
  return context.catalogue.has(sandbox.id) ? "stuck" : "rolled-back";
}

async function cutStart(context: Context, sandbox: Sandbox): Promise<Fate> {
  await move(context, sandbox, "starting", "stopping");
  await stopRun(context, sandbox, "the agent ended while the sandbox was being started");
  return "stopped";
}

/** Rows without a record: the transactions make none, so their releases are all that is left to do. */
async function releaseOrphans(context: Context, rows: Map<string, ResourceRow[]>): Promise<StuckResource[]> {
  const stuck: StuckResource[] = [];
  for (const [owner, ownerRows] of rows) {
    context.dependencies.log.warn({ owner, rows: ownerRows.length }, "journal rows without a record");
    const released = await context.ledger(owner, ownerRows).releaseAll();
    if (released.changes.length > 0) await context.dependencies.store.commit(released.changes);
    if (released.stuck !== null) stuck.push(released.stuck);
  }
  return stuck;
}

/** Leases whose owner has no record any more go through quarantine like any other. */
async function releaseOrphanLeases(context: Context, state: StoredState): Promise<void> {
  const owners = new Set(state.records.map(({ id, generation }) => `${id}/${generation}`));
  for (const { kind, value, owner, state: leaseState } of state.leases) {
    if (leaseState !== "leased" || owners.has(owner)) continue;
    context.dependencies.log.warn({ kind, value, owner }, "a lease without a record");
    await context.dependencies.store.commit([{ quarantine: "leases", owner }]);
    context.leases.quarantine({ [kind]: value });
  }
  await context.leases.sweep();
}

async function findOrphanDirectories(context: Context): Promise<string[]> {
  const { settings } = context.dependencies;
  const names = await readdir(settings.instancesDir);
  return names.filter((name) => !context.catalogue.has(name)).sort();
}

function report(
  context: Context,
  fates: ReadonlyMap<Fate, readonly string[]>,
  orphanDirectories: readonly string[],
  stuck: readonly StuckResource[],
): void {
  const { log } = context.dependencies;
  const counts = Object.fromEntries([...fates].map(([fate, ids]) => [fate, ids.length]));
  log.info({ ...counts }, "reconciled");
  if (orphanDirectories.length > 0) log.warn({ orphanDirectories }, "directories that no sandbox owns; not touched");
  if (stuck.length > 0) log.error({ stuck }, "resources that could not be released");
}
