// Routes of what the dataplane saw of one sandbox: counters, flows, drops, connections, its address.
import type { Drop } from "../../contracts/dataplane.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { NetworkServices } from "../../network/services.ts";
import { defineRoute, type Route } from "../route.ts";
import { okSchema } from "../schema.ts";
import { flowCountersReply, flowFieldsReply, flowReply } from "./flow.ts";
import {
  clamped,
  connectionList,
  conntrackBody,
  dropList,
  flowList,
  learnedSchema,
  limitQuery,
  statsSchema,
} from "./observation-schema.ts";
import { applyFailures } from "./policy-routes.ts";

const BASE = "/v1/vms/:id/network";
const marks = { guard: "sandbox", tag: "network" } as const;
const FAILURES: readonly ErrorCode[] = ["INVALID_STATE", "CAPABILITY_MISSING", "NOT_SUPPORTED", "DATAPLANE_FAILED"];

export function observationRoutes({ fabric, views }: NetworkServices): readonly Route[] {
  const drops = (path: string) =>
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path,
      summary: "Lists what was denied, or would have been, by reason; most packets first, then newest.",
      query: limitQuery,
      success: { status: 200, schema: dropList },
      errors: FAILURES,
      handler: async ({ id, query }) => ({ items: (await views.drops(id, clamped(query.limit))).map(dropReply) }),
    });
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/stats`,
      summary: "Counts packets and bytes that were allowed and dropped.",
      success: { status: 200, schema: statsSchema },
      errors: FAILURES,
      handler: async ({ id }) => {
        const stats = await views.stats(id);
        return {
          allowed_packets: Number(stats.allowedPackets),
          allowed_bytes: Number(stats.allowedBytes),
          dropped_packets: Number(stats.droppedPackets),
          dropped_bytes: Number(stats.droppedBytes),
        };
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/flows`,
      summary: "Lists flows of a sandbox, newest first.",
      query: limitQuery,
      success: { status: 200, schema: flowList },
      errors: FAILURES,
      handler: async ({ id, query }) => ({ items: (await views.flows(id, clamped(query.limit))).map(flowReply) }),
    }),
    drops(`${BASE}/drop-reasons`),
    drops(`${BASE}/drops`),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "GET",
      path: `${BASE}/conntrack`,
      summary: "Lists connections whose packets pass without being decided again.",
      query: limitQuery,
      success: { status: 200, schema: connectionList },
      errors: FAILURES,
      handler: async ({ id, query }) => {
        const connections = await views.connections(id, clamped(query.limit));
        return {
          items: connections.map((connection) => ({
            ...flowFieldsReply(connection),
            last_seen_ns: Number(connection.lastSeenNs),
            origin: connection.origin,
          })),
        };
      },
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/conntrack`,
      summary: "Has every connection decided anew, by the policy that is in force.",
      body: conntrackBody,
      success: { status: 200, schema: okSchema },
      errors: [...applyFailures, "INVALID_STATE"],
      handler: async ({ id }) => {
        await fabric.forgetConnections(id);
        return { ok: true };
      },
    }),
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/learned-ip`,
      summary: "Says which IPv4 address a sandbox was seen to have, and from what.",
      success: { status: 200, schema: learnedSchema },
      errors: FAILURES,
      handler: async ({ id }) => {
        const learned = await views.learnedAddress(id);
        return { ip: learned?.address ?? null, source: learned?.source ?? null };
      },
    }),
  ];
}

function dropReply(drop: Drop) {
  const { reasonCode: reason_code, reason, action } = drop;
  return { ...flowFieldsReply(drop), ...flowCountersReply(drop), reason_code, reason, action };
}
