// Creating a sandbox. Two transactions stand for the caller: *accept* writes the record, its leases and the first
// intents before anything is made; *ready* writes the outcome and the stored reply before the caller is answered. In
// between, any failure gives everything back and removes the record.
import { randomBytes, randomUUID } from "node:crypto";
import type { SandboxPlan } from "../contracts/backend.ts";
import { limits } from "../config/limits.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import type { Change } from "../state/change.ts";
import { LeaseConflict } from "../state/conflicts.ts";
import type { Context } from "./context.ts";
import { checkEnvironment, type Environment, environmentChanges } from "./environment.ts";
import { checkLabels, checkName, isId } from "./fields.ts";
import type { Leases } from "./leases.ts";
import { checkNetwork, forgetNetwork } from "./network.ts";
import { beginKey, finishKey, keyError } from "./once.ts";
import type { Caller, CreateSandboxRequest, IdempotentRequest, VmRecord } from "./operations.ts";
import { lifeOwner, newRecord, runOwner, type SandboxRecord, toRow } from "./record.ts";
import {
  discard,
  endInstance,
  fulfilPlaces,
  instanceFields,
  launch,
  ownPlace,
  publish,
  releaseRun,
  stuckMessage,
  volumeRequest,
} from "./run.ts";
import { Sandbox } from "./sandbox.ts";
import { eventRow, fail, move } from "./transition.ts";

const LEASE_TRIES_MAX = 16;

/** What the request says, checked, with its defaults. */
interface Wish {
  readonly id: string;
  readonly name: string;
  readonly tenant: string | null;
  readonly labels: Readonly<Record<string, string>>;
  readonly ttlSeconds: number | null;
  readonly environment: Environment;
  readonly pool: string | null;
}

function checkWish(caller: Caller, request: CreateSandboxRequest): Wish {
  const id = request.id === undefined || request.id === "" ? randomUUID() : request.id;
  if (!isId(id)) throw new AgentError("INVALID_ID");
  const tenant = request.tenant ?? caller.tenant;
  if (caller.tenant !== null && tenant !== caller.tenant) throw new AgentError("TENANT_REFUSED");
  const ttlSeconds = request.ttlSeconds ?? null;
  if (ttlSeconds !== null && !(Number.isInteger(ttlSeconds) && ttlSeconds >= 1 && ttlSeconds <= limits.ttlMaxSeconds)) {
    throw new AgentError("BAD_REQUEST", `ttl_seconds is a whole number from 1 to ${limits.ttlMaxSeconds}`);
  }
  return {
    id,
    name: checkName(request.name ?? `sandbox-${id}`),
    tenant,
    labels: checkLabels(request.labels ?? {}),
    ttlSeconds,
    environment: checkEnvironment(request.env ?? {}),
    pool: request.pool ?? null,
  };
}

/**
 * Makes a sandbox and answers its record once commands can run in it. Rejects with the backend's plan errors before
 * anything is acquired, and after a failure only when everything is given back.
 */
export async function create(context: Context, caller: Caller, request: CreateSandboxRequest): Promise<VmRecord> {
  const startedAt = performance.now();
  context.assertOpen();
  const wish = checkWish(caller, request);
  const plan = await context.backend(request.backend).plan(request.backendRequest);
  await checkNetwork(context, plan);
  for (let attempt = 1; ; attempt += 1) {
    const leases = await context.leases.reserve(plan.leases);
    try {
      const record = await acceptAndLaunch(context, caller, request, wish, plan, leases);
      context.dependencies.metrics.created(performance.now() - startedAt);
      return record;
    } catch (error) {
      if (!(error instanceof LeaseConflict) || attempt >= LEASE_TRIES_MAX) throw asAgentError(error);
      // The value stays marked as taken in memory, so that the next attempt gets another one.
      context.dependencies.log.warn({ kind: error.kind, value: error.value }, "a lease was taken already");
    }
  }
}

async function acceptAndLaunch(
  context: Context,
  caller: Caller,
  request: CreateSandboxRequest,
  wish: Wish,
  plan: SandboxPlan,
  leases: Leases,
): Promise<VmRecord> {
  let sandbox: Sandbox;
  try {
    context.assertOpen();
    context.catalogue.admit({ id: wish.id, token: caller.token, memoryMib: plan.memoryMib });
    sandbox = newSandbox(context, caller, request.backend, wish, plan, leases);
  } catch (error) {
    context.leases.cancel(leases);
    throw error;
  }
  context.catalogue.add(sandbox);
  return await sandbox.actor.tell("create", async () => {
    await accept(context, sandbox, leases, request.idempotency);
    try {
      return await bringUp(context, sandbox, request.idempotency);
    } catch (error) {
      await undo(context, sandbox, asAgentError(error));
      throw error;
    }
  });
}

function newSandbox(
  context: Context,
  caller: Caller,
  backend: string,
  { environment, ...wish }: Wish,
  plan: SandboxPlan,
  leases: Leases,
): Sandbox {
  const record = newRecord({
    ...wish,
    generation: randomUUID(),
    shortName: context.catalogue.shortNameFor(wish.id),
    phase: "creating",
    error: null,
    createdByToken: caller.token,
    createdAtUnixMs: context.dependencies.clock.nowUnixMs(),
    readyAtUnixMs: null,
    pausedAtUnixMs: null,
    lastExit: null,
    idempotencyHash: null,
    backend,
    spec: plan.spec,
    leases: { ...leases },
    vcpus: plan.vcpus,
    memoryMib: plan.memoryMib,
    volumeCapBytes: plan.volumeCapBytes,
    isolation: plan.isolation,
    notes: [...plan.notes],
    resources: null,
    pool: wish.pool,
    podUid: null,
    networkWish: plan.network ?? null,
    network: null,
    run: 1,
    incarnation: 0,
    identity: null,
    visiblePid: null,
    enforcement: null,
  });
  const token = randomBytes(32).toString("hex");
  return new Sandbox(record, token, environment, context.ledger(lifeOwner(record)), context.ledger(runOwner(record)));
}

/** The accept transaction. When it is refused nothing of the sandbox remains. */
async function accept(
  context: Context,
  sandbox: Sandbox,
  leases: Leases,
  idempotency: IdempotentRequest | undefined,
): Promise<void> {
  const { store, crashPoint, publish: tell } = context.dependencies;
  const record: SandboxRecord = { ...sandbox.record, idempotencyHash: idempotency?.hash ?? null };
  const event = eventRow(context, record, "sandbox.created", { name: record.name });
  try {
    await assertNoRemains(context, record.id);
    const changes: Change[] = [
      { put: "record", row: toRow(record) },
      { put: "secret", id: record.id, name: "guest-token", value: sandbox.token },
      ...environmentChanges(record.id, sandbox.environment),
      ...context.leases.take(leases, sandbox.life.owner),
      sandbox.life.intend(context.places.instanceResource(record.id)),
      sandbox.life.intend(context.places.socketResource(record.shortName)),
      { append: "event", row: event },
      ...beginKey(context, idempotency),
    ];
    await crashPoint("create.before-accept");
    await store.commit(changes);
  } catch (error) {
    context.catalogue.remove(sandbox);
    context.leases.cancel(error instanceof LeaseConflict ? without(leases, error.kind) : leases);
    throw keyError(error);
  }
  sandbox.record = record;
  tell(event);
  await crashPoint("create.accepted");
}

function without(leases: Leases, kind: string): Leases {
  return Object.fromEntries(Object.entries(leases).filter(([other]) => other !== kind));
}

/** A directory without a record is somebody's data; a new sandbox must not take it over and later delete it. */
async function assertNoRemains(context: Context, id: string): Promise<void> {
  if (await context.places.exists(id)) {
    throw new AgentError("SANDBOX_EXISTS", "files of an earlier sandbox with this id are still on the host", {
      details: { id },
    });
  }
}

async function bringUp(
  context: Context,
  sandbox: Sandbox,
  idempotency: IdempotentRequest | undefined,
): Promise<VmRecord> {
  const { places, dependencies } = context;
  const { record, life } = sandbox;
  await fulfilPlaces(context, life, record.id, record.shortName);
  const volume = await dependencies.storage.createVolume(volumeRequest(sandbox, record.id), life);
  await places.linkFiles(record.id, volume.path);
  await dependencies.crashPoint("create.volume");
  await move(context, sandbox, "creating", "starting", { changes: () => life.settle() });
  await dependencies.crashPoint("create.starting");
  const instance = await launch(context, sandbox, ownPlace(sandbox, volume));
  await dependencies.crashPoint("create.launched");
  try {
    await move(context, sandbox, "starting", "ready", {
      patch: {
        ...instanceFields(instance),
        readyAtUnixMs: dependencies.clock.nowUnixMs(),
        idempotencyHash: null,
      },
      changes: (next) => [
        ...life.settle(),
        ...sandbox.run.settle(),
        ...finishKey(idempotency, context.render(sandbox, next)),
      ],
    });
  } catch (error) {
    await discard(instance);
    throw error;
  }
  publish(context, sandbox, { instance, volume });
  await dependencies.crashPoint("create.ready");
  return context.render(sandbox);
}

/**
 * Gives back everything of a create that was not acknowledged and removes its record. When something is stuck the
 * sandbox stays as `failed`, with its journal, and can be removed. Also used for creates that a crash interrupted.
 */
export async function undo(context: Context, sandbox: Sandbox, cause: AgentError): Promise<void> {
  const { store, crashPoint, log, publish: tell } = context.dependencies;
  const { record } = sandbox;
  log.warn({ sandbox: record.id, code: cause.code, error: cause.message }, "a create failed and is undone");
  await endInstance(context, sandbox, limits.discardBudgetMs);
  const run = await releaseRun(context, sandbox);
  const life = run.stuck === null ? await sandbox.life.releaseAll() : { changes: [], stuck: run.stuck };
  await crashPoint("create.undone");
  const changes = [...run.changes, ...life.changes, ...forgetIdempotency(record)];
  if (life.stuck !== null) {
    await fail(context, sandbox, `${cause.message}; ${stuckMessage(life.stuck)}`, changes);
    return;
  }
  const event = eventRow(context, record, "sandbox.failed", { error: cause.message });
  try {
    await store.commit([...changes, ...goneChanges(sandbox), { append: "event", row: event }]);
  } catch (error) {
    log.error({ sandbox: record.id, error: String(error) }, "an undone create could not be forgotten");
    await fail(context, sandbox, cause.message);
    return;
  }
  context.leases.quarantine(record.leases as Leases);
  context.catalogue.remove(sandbox);
  await forgetNetwork(context, record.id);
  tell(event);
  await crashPoint("create.gone");
}

function forgetIdempotency(record: SandboxRecord): Change[] {
  return record.idempotencyHash === null ? [] : [{ remove: "idempotency", hash: record.idempotencyHash }];
}

/** The changes after which nothing durable knows the sandbox; its leases wait in quarantine. */
export function goneChanges(sandbox: Sandbox): Change[] {
  return [
    { remove: "record", id: sandbox.id },
    { remove: "secrets", id: sandbox.id },
    { quarantine: "leases", owner: sandbox.life.owner },
  ];
}
