// Routes of warm pools: made, listed, shown, resized, removed, and claimed from.
import type { Static } from "@sinclair/typebox";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { CreatePoolRequest, Pool } from "../../sandbox/pools/operations.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { launchFailures, sandboxFailures } from "../failures.ts";
import { defineRoute, type Route } from "../route.ts";
import { createRequest, type ReadTemplate } from "../sandboxes/create.ts";
import { createVmRequest } from "../sandboxes/create-vm.ts";
import { whenReady } from "../sandboxes/ready.ts";
import { readyQuery } from "../sandboxes/schema.ts";
import { vmRecordSchema } from "../schema.ts";
import { claimBody, poolBody, poolList, poolSchema, resizeBody } from "./schema.ts";

const COLLECTION = "/v1/pools";
const ITEM = `${COLLECTION}/:name`;
const marks = { guard: "tenant-list", tag: "pools" } as const;

const CREATE_FAILURES: readonly ErrorCode[] = [
  ...launchFailures,
  "BAD_REQUEST",
  "TENANT_REFUSED",
  "HOST_PATHS_REFUSED",
  "POOL_EXISTS",
  "SANDBOXES_EXHAUSTED",
  "TEMPLATE_NOT_FOUND",
  "TEMPLATE_INVALID",
];

export function poolRoutes({ operations, pools, templates }: HttpDependencies): readonly Route[] {
  const readTemplate: ReadTemplate = (name) => templates.get(name);
  return [
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: COLLECTION,
      summary: "Makes a pool of sandboxes that wait frozen; they are started in the background.",
      body: poolBody,
      success: { status: 201, schema: poolSchema },
      errors: CREATE_FAILURES,
      handler: async ({ caller, body }) =>
        poolReply(await pools.createPool(caller, await asked(caller, body, readTemplate))),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: COLLECTION,
      summary: "Lists the pools that the caller may see by name.",
      success: { status: 200, schema: poolList },
      handler: ({ caller }) => ({ items: pools.pools(caller).map(poolReply) }),
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: ITEM,
      summary: "Shows a pool.",
      success: { status: 200, schema: poolSchema },
      errors: ["POOL_NOT_FOUND"],
      handler: ({ caller, params }) => poolReply(pools.pool(caller, params.name ?? "")),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "DELETE",
      path: ITEM,
      summary: "Removes a pool and those who wait in it; who was claimed stays.",
      success: { status: 204 },
      errors: ["POOL_NOT_FOUND"],
      handler: ({ caller, params }) => pools.removePool(caller, params.name ?? ""),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${ITEM}/resize`,
      summary: "Changes how many wait: more are started in the background, fewer are removed at once.",
      body: resizeBody,
      success: { status: 200, schema: poolSchema },
      errors: ["BAD_REQUEST", "POOL_NOT_FOUND"],
      handler: async ({ caller, params, body }) =>
        poolReply(await pools.resizePool(caller, params.name ?? "", body.size)),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${ITEM}/claim`,
      summary:
        "Takes one that waits, which is a sandbox of the caller's from then on; another is started in its place.",
      body: claimBody,
      query: readyQuery,
      success: { status: 200, schema: vmRecordSchema },
      errors: [...sandboxFailures, "BAD_REQUEST", "POOL_NOT_FOUND", "POOL_EMPTY"],
      handler: ({ caller, params, body, query }) => {
        const { name, env, ttl_seconds: ttlSeconds, pod_uid: podUid } = body;
        return whenReady(operations, caller, query, () =>
          pools.claim(caller, params.name ?? "", { name, env, ttlSeconds, podUid }),
        );
      },
    }),
  ];
}

async function asked(
  caller: Caller,
  { name, size, template }: Static<typeof poolBody>,
  readTemplate: ReadTemplate,
): Promise<CreatePoolRequest> {
  const request =
    typeof template === "string"
      ? await createRequest(caller, { template }, readTemplate)
      : createVmRequest(caller, template);
  return { name, size, template: request };
}

function poolReply(pool: Pool) {
  const { name, tenant, size, members, template, ready, claimedTotal, createdAtUnixMs, error } = pool;
  return {
    name,
    tenant,
    size,
    members: [...members],
    template,
    ready,
    pending: Math.max(0, size - ready),
    claimed_total: claimedTotal,
    created_at: new Date(createdAtUnixMs).toISOString(),
    error,
  };
}
