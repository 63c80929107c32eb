// Routes about the agent itself: health, readiness, metrics, quotas.
import { Type } from "@sinclair/typebox";
import type { HttpDependencies } from "../dependencies.ts";
import { defineRoute, type Route } from "../route.ts";
import { nullable, okSchema } from "../schema.ts";

const METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8";

const readiness = Type.Object(
  {
    ready: Type.Boolean(),
    checks: Type.Array(
      Type.Object(
        { name: Type.String(), ok: Type.Boolean(), reason: Type.Optional(Type.String()) },
        { additionalProperties: false },
      ),
    ),
  },
  { $id: "Readiness", additionalProperties: false },
);

const quotaUse = Type.Object(
  {
    actor: Type.String(),
    tenant: nullable(Type.String()),
    vms: Type.Integer(),
    vms_max: nullable(Type.Integer()),
    memory_mib: Type.Integer(),
    memory_mib_max: nullable(Type.Integer()),
  },
  { $id: "QuotaUse", additionalProperties: false },
);

export function serviceRoutes({ operations, host, telemetry }: HttpDependencies): readonly Route[] {
  return [
    defineRoute({
      method: "GET",
      path: "/healthz",
      auth: "none",
      guard: "shared",
      tag: "service",
      summary: "Says that the agent answers.",
      success: { status: 200, schema: okSchema },
      handler: () => ({ ok: true }),
    }),
    defineRoute({
      method: "GET",
      path: "/readyz",
      auth: "none",
      guard: "shared",
      tag: "service",
      summary: "Says whether the agent can do its work, and what is missing.",
      success: { status: 200, schema: readiness },
      alternatives: { 503: readiness },
      handler: async () => {
        const checks = await host.readiness();
        const ready = checks.every((check) => check.ok);
        return Response.json({ ready, checks }, { status: ready ? 200 : 503 });
      },
    }),
    defineRoute({
      method: "GET",
      path: "/metrics",
      auth: "reader",
      guard: "shared",
      tag: "service",
      summary: "Metrics in the Prometheus text format.",
      success: { status: 200, contentTypes: [METRICS_TYPE] },
      handler: async () => new Response(await telemetry.metricsText(), { headers: { "content-type": METRICS_TYPE } }),
    }),
    defineRoute({
      method: "GET",
      path: "/v1/quotas/me",
      auth: "reader",
      guard: "shared",
      tag: "service",
      summary: "What the caller's token uses, and its limits; null is no limit.",
      success: { status: 200, schema: quotaUse },
      handler: ({ caller }) => {
        const { vms, vmsMax, memoryMib, memoryMibMax } = operations.quota(caller);
        const { actor, tenant } = caller;
        return { actor, tenant, vms, vms_max: vmsMax, memory_mib: memoryMib, memory_mib_max: memoryMibMax };
      },
    }),
  ];
}
