// One run of a sandbox: from launching an instance on its volume until nothing of that instance is left. Create, start,
// stop, remove and reconcile are compositions of these steps.
import { limits } from "../config/limits.ts";
import type { Instance, LaunchRequest } from "../contracts/backend.ts";
import type { GuestChannel } from "../contracts/channel.ts";
import type { Volume, VolumeRequest } from "../contracts/storage.ts";
import { AgentError } from "../errors/agent-error.ts";
import { withDeadline } from "../errors/deadline.ts";
import type { Change } from "../state/change.ts";
import type { Context } from "./context.ts";
import type { Ledger, StuckResource } from "./ledger.ts";
import { connect, disconnect } from "./network.ts";
import type { SandboxRecord } from "./record.ts";
import type { Live, Sandbox } from "./sandbox.ts";
import { bringToPresent } from "./snapshots/present.ts";
import { amend, fail } from "./transition.ts";

/** A backend keeps to the time that it is given by itself, and knows more of why it was not enough. */
const BACKEND_FIRST = 1.05;

/** What differs between the sandbox's own instance and one on a clone of its volume. */
export interface LaunchPlace {
  readonly shortName: string;
  /** Directory name under the instances directory. */
  readonly instanceName: string;
  readonly volume: Volume;
  readonly resources: Ledger;
}

export function launchRequest(context: Context, sandbox: Sandbox, place: LaunchPlace, restore?: string): LaunchRequest {
  return {
    sandboxId: sandbox.id,
    shortName: place.shortName,
    spec: sandbox.record.spec,
    leases: sandbox.record.leases,
    instanceDir: context.places.instanceDir(place.instanceName),
    socketDir: context.places.socketDir(place.shortName),
    volume: place.volume,
    network: sandbox.network,
    token: sandbox.token,
    readyTimeoutMs: context.dependencies.settings.readyTimeoutMs,
    resources: place.resources,
    ...(restore === undefined ? {} : { restore }),
  };
}

/** A volume for a sandbox: owned by its own uid, or by the agent's where sandboxes have none. */
export function volumeRequest(sandbox: Sandbox, name: string): VolumeRequest {
  const { leases, volumeCapBytes: capBytes } = sandbox.record;
  const uid = leases.uid ?? leases.machine_uid;
  if (uid !== undefined) return { name, capBytes, uid, gid: uid };
  return { name, capBytes, uid: process.getuid?.() ?? 0, gid: process.getgid?.() ?? 0 };
}

/** Journals and makes the two directories of an instance beside the sandbox's own. */
export async function makePlaces(
  context: Context,
  ledger: Ledger,
  instanceName: string,
  shortName: string,
): Promise<void> {
  const { places } = context;
  const instance = places.instanceResource(instanceName);
  const socket = places.socketResource(shortName);
  await context.dependencies.store.commit([ledger.intend(instance), ledger.intend(socket)]);
  await context.dependencies.crashPoint("ledger.intent");
  await fulfilPlaces(context, ledger, instanceName, shortName);
}

/** Makes the two directories whose intents are durable already. */
export async function fulfilPlaces(
  context: Context,
  ledger: Ledger,
  instanceName: string,
  shortName: string,
): Promise<void> {
  const { places } = context;
  const instance = places.instanceResource(instanceName);
  const socket = places.socketResource(shortName);
  await ledger.fulfil(instance.kind, instance.name, () => places.makeInstanceDir(instanceName));
  await ledger.fulfil(socket.kind, socket.name, () => places.ensureSocketDir(shortName));
}

/**
 * Starts an instance, from a snapshot when `restore` names one, and waits until its guest agent answers. Rejects with `LAUNCH_FAILED` or the backend's own error;
 * what was acquired then is in the journal of `place.resources`.
 */
export async function launch(
  context: Context,
  sandbox: Sandbox,
  place: LaunchPlace,
  restore?: string,
): Promise<Instance> {
  await context.places.ensureSocketDir(place.shortName);
  const backend = context.backend(sandbox.record.backend);
  try {
    await connect(context, sandbox, place.resources);
    const instance = await backend.launch(launchRequest(context, sandbox, place, restore));
    const channel = await answering(instance, context.dependencies.settings.readyTimeoutMs);
    await boundAgain(context, sandbox, instance);
    if (restore !== undefined) await bringToPresent(context, sandbox.id, channel);
    return instance;
  } catch (error) {
    if (error instanceof AgentError) throw error;
    throw new AgentError("LAUNCH_FAILED", undefined, { cause: error });
  }
}

/** Sets what an operator bounded before; an instance that cannot be bounded ends. */
async function boundAgain(context: Context, { record }: Sandbox, instance: Instance): Promise<void> {
  if (record.resources === null) return;
  try {
    const { resources } = context.backend(record.backend);
    if (resources === undefined) throw new AgentError("NOT_SUPPORTED", "this backend does not bound its resources");
    await withDeadline(resources.limit(instance, record.resources), limits.guestCallTimeoutMs, "bounding resources");
  } catch (error) {
    await discard(instance);
    throw error;
  }
}

/** Resolves with the guest agent of an instance when it answers; ends the instance when it does not within `timeoutMs`. */
async function answering(instance: Instance, timeoutMs: number): Promise<GuestChannel> {
  try {
    return await withDeadline(instance.channel(), timeoutMs * BACKEND_FIRST, "waiting for the guest agent");
  } catch (error) {
    await discard(instance);
    throw error;
  }
}

/** Ends an instance that nobody needs any more. Its journal ends it anyway, so a refusal is no news. */
export async function discard(instance: Instance): Promise<void> {
  const budgetMs = limits.discardBudgetMs;
  await withDeadline(instance.stop(budgetMs), budgetMs + limits.execGraceMs, "ending an instance").catch(
    () => undefined,
  );
}

/** The place of the sandbox's own instance in its current run. */
export function ownPlace(sandbox: Sandbox, volume: Volume): LaunchPlace {
  return { shortName: sandbox.record.shortName, instanceName: sandbox.id, volume, resources: sandbox.run };
}

/** The record's fields about an instance that runs. */
export function instanceFields(instance: Instance): Partial<SandboxRecord> {
  const { identity, visiblePid, enforcement } = instance;
  return { identity: { ...identity }, visiblePid, enforcement };
}

/** The record's fields when there is no instance. */
export const NO_INSTANCE = { identity: null, visiblePid: null, enforcement: null } as const;

/** Publishes an instance to commands and files, and watches for its end. */
export function publish(context: Context, sandbox: Sandbox, live: Live): void {
  sandbox.live = live;
  void live.instance.ended.then((end) =>
    sandbox.actor
      .tell("ended", () => ended(context, sandbox, live, end.reason))
      .catch((error: unknown) => {
        context.dependencies.log.error(
          { sandbox: sandbox.id, error: String(error) },
          "clearing up after an end failed",
        );
      }),
  );
}

/** What was left behind by a run, to be committed with what follows, and what could not be released. */
export interface RunEnd {
  readonly changes: readonly Change[];
  readonly stuck: StuckResource | null;
}

/** Ends the instance, if there is one, within `budgetMs`. Commands and files are refused from the first moment. */
export async function endInstance(context: Context, sandbox: Sandbox, budgetMs: number): Promise<void> {
  const { live, dryRun } = sandbox;
  sandbox.live = null;
  sandbox.executions?.sandboxEnding();
  if (dryRun !== null && !dryRun.inMailbox) {
    dryRun.abort(new AgentError("SANDBOX_GONE", "the sandbox was stopped during the dry-run"));
    await dryRun.done;
  }
  if (live === null) return;
  try {
    await withDeadline(live.instance.stop(budgetMs), budgetMs + limits.execGraceMs, "stopping the instance");
  } catch (error) {
    // The releases that follow end it by its recorded identity, so a stop that fails loses nothing but politeness.
    context.dependencies.log.warn({ sandbox: sandbox.id, error: String(error) }, "an instance did not stop cleanly");
  }
  await sandbox.executions?.sandboxEnded();
}

/** Releases what operations and the current run left behind. */
export async function releaseRun(context: Context, sandbox: Sandbox): Promise<RunEnd> {
  await disconnect(context, sandbox);
  const changes: Change[] = [];
  for (const ledger of [...sandbox.leftovers, sandbox.run]) {
    const released = await ledger.releaseAll();
    changes.push(...released.changes);
    if (released.stuck !== null) return { changes, stuck: released.stuck };
  }
  sandbox.leftovers = [];
  return { changes, stuck: null };
}

export function stuckMessage(stuck: StuckResource): string {
  return `${stuck.kind} ${stuck.name} could not be released: ${stuck.reason}`;
}

export function stuckError(stuck: StuckResource): AgentError {
  return new AgentError("RELEASE_FAILED", stuckMessage(stuck), { details: { kind: stuck.kind, name: stuck.name } });
}

/** An instance ended by itself. Inert when the sandbox has moved on to another instance or to none. */
async function ended(context: Context, sandbox: Sandbox, live: Live, reason: string): Promise<void> {
  if (sandbox.live !== live) return;
  await endInstance(context, sandbox, limits.discardBudgetMs);
  await fail(context, sandbox, reason);
  await context.dependencies.crashPoint("ended.journalled");
  const { changes, stuck } = await releaseRun(context, sandbox);
  await context.dependencies.crashPoint("ended.released");
  const error = stuck === null ? reason : `${reason}; ${stuckMessage(stuck)}`;
  await amend(context, sandbox, { patch: { error }, changes: () => changes });
}
