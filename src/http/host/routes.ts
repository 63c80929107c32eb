// Routes about the host: its plugins and what the doctor finds. They show paths and kernel facts, so tenants' tokens
// may not use them.
import { Type } from "@sinclair/typebox";
import type { HttpDependencies } from "../dependencies.ts";
import { defineRoute, type Route } from "../route.ts";
import { listOf, nullable } from "../schema.ts";

const missingCapability = Type.Object({
  capability: Type.String(),
  reason: Type.String(),
  remedy: Type.String(),
});

const plugin = Type.Object(
  {
    kind: nullable(Type.String({ description: "Null when a file could not be read as a plugin." })),
    id: Type.String(),
    summary: Type.String(),
    state: Type.Union(["loaded", "usable", "skipped", "failed"].map((state) => Type.Literal(state))),
    capabilities: Type.Array(Type.String()),
    missing: Type.Array(missingCapability),
    fault: nullable(Type.String()),
    source: Type.String({ description: "built-in, or the path of the file." }),
  },
  { $id: "Plugin" },
);

const check = Type.Object(
  {
    id: Type.String(),
    title: Type.String(),
    state: Type.Union(["ok", "info", "warning", "failed"].map((state) => Type.Literal(state))),
    found: Type.String(),
    remedy: nullable(Type.String()),
  },
  { $id: "DoctorCheck" },
);

export function hostRoutes({ host }: HttpDependencies): readonly Route[] {
  return [
    defineRoute({
      method: "GET",
      path: "/v1/host/plugins",
      auth: "reader",
      guard: "host",
      tag: "host",
      summary: "Lists the plugins: what is loaded, what was skipped or failed, and why.",
      success: { status: 200, schema: listOf(plugin) },
      handler: () => ({ items: host.plugins() }),
    }),
    defineRoute({
      method: "GET",
      path: "/v1/host/doctor",
      auth: "reader",
      guard: "host",
      tag: "host",
      summary: "Checks the host, with a remedy for each check that fails.",
      success: { status: 200, schema: listOf(check) },
      handler: async () => ({ items: await host.doctor() }),
    }),
  ];
}
