// Routes of taking connections along when a sandbox moves to another host: no new ones, export, import, go on.
import { Type } from "@sinclair/typebox";
import type { JsonObject } from "../../contracts/json.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { NetworkServices } from "../../network/services.ts";
import { defineRoute, type Route } from "../route.ts";

const BASE = "/v1/vms/:id/network/migration";
const marks = { guard: "sandbox", tag: "network" } as const;
const FAILURES: readonly ErrorCode[] = [
  "INVALID_STATE",
  "CAPABILITY_MISSING",
  "NOT_SUPPORTED",
  "DATAPLANE_FAILED",
  "POLICY_INVALID",
  "BAD_REQUEST",
];
/** As many connections as a sandbox may have. */
const DOCUMENT_MAX_BYTES = 16 * 1024 * 1024;

const phaseSchema = Type.Object(
  { phase: Type.Union(["running", "quiescing", "restoring"].map((phase) => Type.Literal(phase))) },
  { $id: "MigrationState", additionalProperties: false },
);
const documentSchema = Type.Record(Type.String(), Type.Unknown(), {
  description: "Connections of a sandbox with the policy that decided them; made by `export`.",
});

export function migrationRoutes({ views }: NetworkServices): readonly Route[] {
  const enter = (name: string, phase: "running" | "quiescing", summary: string) =>
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/${name}`,
      summary,
      success: { status: 200, schema: phaseSchema },
      errors: FAILURES,
      handler: async ({ id }) => {
        await views.migration(id).setPhase(id, phase);
        return { phase };
      },
    });
  return [
    defineRoute({
      ...marks,
      auth: "reader",
      method: "GET",
      path: `${BASE}/state`,
      summary: "Says whether new connections may begin.",
      success: { status: 200, schema: phaseSchema },
      errors: FAILURES,
      handler: async ({ id }) => ({ phase: await views.migration(id).phase(id) }),
    }),
    enter("quiesce", "quiescing", "Lets established connections go on and no new one begin."),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "GET",
      path: `${BASE}/export`,
      summary: "Sends the established connections of a sandbox.",
      success: { status: 200, schema: documentSchema },
      errors: FAILURES,
      handler: ({ id }) => views.migration(id).exportConnections(id),
    }),
    defineRoute({
      ...marks,
      auth: "admin",
      method: "POST",
      path: `${BASE}/restore`,
      summary: "Takes the connections of the same sandbox elsewhere; no new one begins until `resume`.",
      body: documentSchema,
      bodyMaxBytes: DOCUMENT_MAX_BYTES,
      success: { status: 200, schema: phaseSchema },
      errors: FAILURES,
      handler: async ({ id, body }) => {
        const migration = views.migration(id);
        await migration.setPhase(id, "restoring");
        await migration.importConnections(id, body as JsonObject);
        return { phase: "restoring" };
      },
    }),
    enter("resume", "running", "Lets new connections begin again."),
  ];
}
