// The log of events, and the stream of those to come. A tenant's caller sees the events of its tenant only.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf, nullable } from "../schema.ts";
import type { AttachedStreams } from "../stream/attached.ts";
import { acceptedFraming, framings } from "../stream/framing.ts";
import { streamResponse } from "../stream/response.ts";
import { eventFraming, parseEventId } from "./framing.ts";
import { eventReply } from "./reply.ts";
import { EventFrames } from "./source.ts";

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

const filters = {
  vm: Type.Optional(Type.String({ description: "Id of a sandbox." })),
  event: Type.Optional(Type.String({ description: "Prefix of the event's name." })),
  since: Type.Optional(Type.String({ description: "RFC 3339; events at or after it." })),
};

const eventQuery = Type.Object({
  ...filters,
  limit: Type.Optional(
    Type.Integer({ minimum: 1, maximum: limits.eventsPageMax, description: "The newest this many." }),
  ),
});

const streamQuery = Type.Object({
  ...filters,
  epoch: Type.Optional(Type.String({ description: "With `after`: the epoch of the last event that was seen." })),
  after: Type.Optional(Type.Integer({ minimum: 0, description: "Goes on behind the event with this sequence." })),
});

export function eventRoutes(
  { store, events, telemetry }: HttpDependencies,
  streams: AttachedStreams,
): readonly Route[] {
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
    defineRoute({
      method: "GET",
      path: "/v1/events/stream",
      auth: "reader",
      guard: "tenant-list",
      tag: "events",
      summary: "Follows events as they happen; `lagged` says that some were lost.",
      query: streamQuery,
      success: { status: 200, contentTypes: Object.values(framings).map(({ contentType }) => contentType) },
      handler: ({ caller, query, request: { headers } }) => {
        const filter = {
          tenant: caller.tenant,
          sandboxId: query.vm,
          actionPrefix: query.event,
          sinceUnixMs: query.since === undefined ? undefined : unixMs(query.since),
        };
        const { epoch, after: sequence } = query;
        const named = epoch === undefined || sequence === undefined ? null : { epoch, sequence };
        const after = parseEventId(headers.get("last-event-id")) ?? named;
        const framing = eventFraming(acceptedFraming(headers.get("accept")));
        const place = streams.take(caller);
        return streamResponse(new EventFrames(events, filter, after), { framing, place, log: telemetry.log });
      },
    }),
  ];
}

const RFC_3339 = /^\d{4}-\d{2}-\d{2}[Tt]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:[Zz]|[+-]\d{2}:\d{2})$/;

function unixMs(text: string): number {
  const parsed = RFC_3339.test(text) ? Date.parse(text) : Number.NaN;
  if (Number.isNaN(parsed)) {
    throw new AgentError("BAD_REQUEST", "field since: expected an RFC 3339 time", { details: { field: "since" } });
  }
  return parsed;
}
