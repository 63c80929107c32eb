// Warm pools: made, shown, resized, removed and claimed from. A pool is durable before anybody hears of it, and a member
// becomes its claimer's in one transaction: a crash before that leaves it in its pool.
import { randomUUID } from "node:crypto";
import { limits } from "../../config/limits.ts";
import type { JsonObject } from "../../contracts/json.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import type { Change } from "../../state/change.ts";
import type { Context } from "../context.ts";
import { checkEnvironment, type Environment, environmentChanges } from "../environment.ts";
import { checkLabels, checkName } from "../fields.ts";
import type { Caller, VmRecord } from "../operations.ts";
import { resume } from "../power.ts";
import type { Sandbox } from "../sandbox.ts";
import { amend, eventRow } from "../transition.ts";
import { type PoolRecord, toPoolRow } from "./book.ts";
import type { PoolKeeper } from "./keeper.ts";
import type { ClaimRequest, CreatePoolRequest, Pool, PoolOperations } from "./operations.ts";

const NAME = /^[A-Za-z0-9._-]{1,64}$/;
const POD_UID = /^[A-Za-z0-9._-]{1,128}$/;

export function poolOperations(context: Context, keeper: PoolKeeper): PoolOperations {
  const { pools } = context;
  return {
    createPool: async (caller, request) => {
      const pool = await createPool(context, caller, request);
      keeper.fill(pool.id);
      return view(keeper, pool);
    },
    pools: (caller) =>
      pools
        .all()
        .filter((pool) => pools.sees(caller, pool))
        .map((pool) => view(keeper, pool)),
    pool: (caller, name) => view(keeper, pools.find(caller, name)),
    removePool: async (caller, name) => {
      context.assertOpen();
      const pool = pools.find(caller, name);
      await change(context, pool, null, [
        { remove: "pool", id: pool.id },
        { remove: "secrets", id: pool.id },
      ]);
      await keeper.trim(pool.id);
    },
    resizePool: async (caller, name, size) => {
      context.assertOpen();
      const pool = pools.find(caller, name);
      const resized = { ...pool, size: checkSize(size) };
      await change(context, pool, resized, [{ put: "pool", row: toPoolRow(resized) }]);
      await keeper.trim(pool.id);
      keeper.fill(pool.id);
      return view(keeper, pools.byId(pool.id) ?? resized);
    },
    claim: async (caller, name, request) => {
      context.assertOpen();
      const pool = pools.find(caller, name);
      const wish = checkClaim(request, pools.environmentOf(pool.id));
      try {
        return await claim(context, keeper, pool, wish);
      } finally {
        keeper.fill(pool.id);
      }
    },
  };
}

async function createPool(context: Context, caller: Caller, request: CreatePoolRequest): Promise<PoolRecord> {
  context.assertOpen();
  const { name, size, template } = request;
  // In an address those two would name something else.
  if (!NAME.test(name) || name === "." || name === "..")
    throw new AgentError("BAD_REQUEST", "a pool's name is 1 to 64 of A-Z, a-z, 0-9, '.', '_', '-'");
  const tenant = template.tenant ?? caller.tenant;
  if (caller.tenant !== null && tenant !== caller.tenant) throw new AgentError("TENANT_REFUSED");
  const backend = context.backend(template.backend);
  if (backend.pause === undefined) {
    throw new AgentError("NOT_SUPPORTED", `sandboxes of the backend ${template.backend} cannot wait frozen`);
  }
  const pool: PoolRecord = {
    id: randomUUID(),
    name,
    tenant,
    createdByToken: caller.token,
    createdAtUnixMs: context.dependencies.clock.nowUnixMs(),
    size: checkSize(size),
    claimedTotal: 0,
    backend: template.backend,
    backendRequest: template.backendRequest,
    labels: checkLabels(template.labels ?? {}),
  };
  const environment = checkEnvironment(template.env ?? {});
  await backend.plan(template.backendRequest);
  // In one step with taking the name.
  if (context.pools.all().some((other) => other.name === name)) throw new AgentError("POOL_EXISTS");
  if (context.pools.all().length >= limits.poolsMax) {
    throw new AgentError("SANDBOXES_EXHAUSTED", `this host may have ${limits.poolsMax} pools`);
  }
  await change(context, null, pool, [
    { put: "pool", row: toPoolRow(pool) },
    ...environmentChanges(pool.id, environment),
  ]);
  context.pools.equip(pool.id, environment);
  return pool;
}

/** Makes a pool what it is to be, in memory first, so that what comes meanwhile builds on it; undone when refused. */
async function change(
  context: Context,
  before: PoolRecord | null,
  after: PoolRecord | null,
  stored: readonly Change[],
): Promise<void> {
  const { pools, dependencies } = context;
  if (after !== null) pools.put(after);
  else if (before !== null) pools.remove(before.id);
  try {
    await dependencies.store.commit(stored);
  } catch (error) {
    if (before !== null) pools.put(before);
    else if (after !== null) pools.remove(after.id);
    throw error;
  }
}

/** The oldest member that comes to life. One that does not is removed. */
async function claim(context: Context, keeper: PoolKeeper, pool: PoolRecord, wish: ClaimRequest): Promise<VmRecord> {
  for (;;) {
    const [member] = keeper.ready(pool.id);
    if (member === undefined) throw new AgentError("POOL_EMPTY");
    const record = await keeper.reserve(member, async () => {
      try {
        await resume(context, member);
      } catch (error) {
        const { message } = asAgentError(error);
        context.dependencies.log.warn({ sandbox: member.id, error: message }, "a pool member could not be resumed");
        await keeper.discard(member);
        return null;
      }
      return await member.actor.run("claim", () => handOver(context, member, pool, wish));
    });
    if (record !== null) return record;
  }
}

/** The transaction that makes a member a sandbox like any other. */
async function handOver(context: Context, member: Sandbox, pool: PoolRecord, wish: ClaimRequest): Promise<VmRecord> {
  const { clock, publish } = context.dependencies;
  if (context.catalogue.byId(member.id) !== member) throw new AgentError("SANDBOX_GONE");
  const { name = `sandbox-${member.id}`, ttlSeconds = null, podUid = null } = wish;
  const environment = { ...member.environment, ...wish.env };
  const patch = { pool: null, name, ttlSeconds, podUid, createdAtUnixMs: clock.nowUnixMs() };
  const event = eventRow(context, member.record, "sandbox.claimed", { pool: pool.name });
  try {
    await amend(context, member, {
      patch,
      changes: () => [
        ...counted(context, pool.id, 1),
        ...environmentChanges(member.id, environment),
        { append: "event", row: event },
      ],
    });
  } catch (error) {
    counted(context, pool.id, -1);
    throw error;
  }
  member.environment = environment;
  publish(event);
  return context.render(member);
}

/** A pool that was removed meanwhile does not come back. */
function counted(context: Context, id: string, claims: number): Change[] {
  const pool = context.pools.byId(id);
  if (pool === undefined) return [];
  const next = { ...pool, claimedTotal: pool.claimedTotal + claims };
  context.pools.put(next);
  return [{ put: "pool", row: toPoolRow(next) }];
}

function checkSize(size: number): number {
  if (Number.isInteger(size) && size >= 1 && size <= limits.poolSizeMax) return size;
  throw new AgentError("BAD_REQUEST", `the size of a pool is a whole number from 1 to ${limits.poolSizeMax}`);
}

/** Before a member is touched. */
function checkClaim({ name, env = {}, ttlSeconds, podUid }: ClaimRequest, ofPool: Environment): ClaimRequest {
  if (podUid !== undefined && !POD_UID.test(podUid)) {
    throw new AgentError("BAD_REQUEST", "pod_uid is 1 to 128 of A-Z, a-z, 0-9, '.', '_' and '-'");
  }
  const isTtl = ttlSeconds === undefined || (Number.isInteger(ttlSeconds) && ttlSeconds >= 1);
  if (!isTtl || (ttlSeconds ?? 0) > limits.ttlMaxSeconds) {
    throw new AgentError("BAD_REQUEST", `ttl_seconds is a whole number from 1 to ${limits.ttlMaxSeconds}`);
  }
  checkEnvironment({ ...ofPool, ...env });
  return { ...(name !== undefined && { name: checkName(name) }), env, ttlSeconds, podUid };
}

function view(keeper: PoolKeeper, pool: PoolRecord): Pool {
  const { name, tenant, size, claimedTotal, createdAtUnixMs, backend, labels } = pool;
  // What a request says of the guest agent may hold its token, and cloud-init is told passwords.
  const { agent: _agent, cloud_init: _cloudInit, ...shown } = pool.backendRequest;
  const template: JsonObject = { backend, ...shown, labels: { ...labels } };
  return {
    name,
    tenant,
    size,
    template,
    members: keeper.members(pool.id).map(({ id }) => id),
    ready: keeper.ready(pool.id).length,
    claimedTotal,
    createdAtUnixMs,
    error: keeper.errorOf(pool.id),
  };
}
