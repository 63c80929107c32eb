// The log of events. A tenant's caller sees the events of its tenant only.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { EventRow } from "../../state/change.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf, nullable } from "../schema.ts";

const LIMIT_DEFAULT = 100;

const event = Type.Object(
  {
    at: Type.String({ description: "RFC 3339, UTC" }),
    event: Type.String(),
    vm: nullable(Type.String()),
    tenant: nullable(Type.String()),
    attributes: Type.Record(Type.String(), Type.Unknown()),
  },
  { $id: "Event", additionalProperties: false },
);

const eventQuery = Type.Object({
  vm: Type.Optional(Type.String({ description: "Id of a sandbox." })),
  event: Type.Optional(Type.String({ description: "Prefix of the event's name." })),
  since: Type.Optional(Type.String({ description: "RFC 3339; events at or after it." })),
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: limits.eventsPageMax, description: "The newest this many." }),
  ),
});

export function eventRoutes({ store }: HttpDependencies): readonly Route[] {
  return [
    defineRoute({
      method: "GET",
      path: "/v1/events",
      auth: "reader",
      guard: "tenant-list",
      tag: "events",
      summary: "Lists events, oldest first.",
      query: eventQuery,
      success: { status: 200, schema: listOf(event) },
      handler: async ({ caller, query }) => {
        const rows = await store.events({
          sandboxId: query.vm,
          actionPrefix: query.event,
          sinceUnixMs: query.since === undefined ? undefined : unixMs(query.since),
          tenant: caller.tenant,
          limit: query.limit ?? LIMIT_DEFAULT,
        });
        return { items: rows.map(eventReply) };
      },
    }),
  ];
}

function eventReply(row: EventRow) {
  return {
    at: new Date(row.atUnixMs).toISOString(),
    event: row.action,
    vm: row.sandboxId,
    tenant: row.tenant,
    attributes: row.attributes,
  };
}

const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})$/;

function unixMs(text: string): number {
  const parsed = RFC_3339.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(parsed)) {
    throw new AgentError("BAD_REQUEST", "field since: expected an RFC 3339 time", { details: { field: "since" } });
  }
  return parsed;
}
