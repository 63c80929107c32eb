// The stream of flows. A tenant's caller sees the flows of its own sandboxes only.
import { Type } from "@sinclair/typebox";
import { AgentError } from "../../errors/agent-error.ts";
import type { HttpDependencies } from "../dependencies.ts";
import { defineRoute, type Route } from "../route.ts";
import type { AttachedStreams } from "../stream/attached.ts";
import { acceptedFraming, framings } from "../stream/framing.ts";
import { streamResponse } from "../stream/response.ts";
import { verdictSchema } from "./flow.ts";
import { FlowFrames } from "./flow-frames.ts";

const query = Type.Object({
  vm_id: Type.Optional(Type.String({ description: "Only flows of this sandbox." })),
  verdict: Type.Optional(verdictSchema),
  epoch: Type.Optional(Type.String({ description: "With `after`: the epoch of the last flow that was seen." })),
  after: Type.Optional(Type.Integer({ minimum: 0, description: "Goes on behind the flow with this sequence." })),
});

export function flowRoutes(
  { flows, operations, telemetry }: Pick<HttpDependencies, "flows" | "operations" | "telemetry">,
  streams: AttachedStreams,
): readonly Route[] {
  return [
    defineRoute({
      method: "GET",
      path: "/v1/network/flows/stream",
      auth: "reader",
      guard: "tenant-list",
      tag: "network",
      summary: "Follows flows that are new or advance, once a second; `lagged` says that some were lost.",
      query,
      success: { status: 200, contentTypes: Object.values(framings).map(({ contentType }) => contentType) },
      errors: ["SANDBOX_NOT_FOUND", "NOT_SUPPORTED"],
      handler: ({ caller, query: { vm_id: sandboxId, verdict, epoch, after: sequence }, request: { headers } }) => {
        if (flows === null) throw new AgentError("NOT_SUPPORTED", "the dataplane of this host tells no flows");
        if (sandboxId !== undefined) operations.get(caller, sandboxId);
        const after = epoch === undefined || sequence === undefined ? null : { epoch, sequence };
        const framing = acceptedFraming(headers.get("accept")) ?? framings.ndjson;
        const place = streams.take(caller);
        const frames = new FlowFrames(flows, { tenant: caller.tenant, sandboxId, verdict }, after);
        return streamResponse(frames, { framing, place, log: telemetry.log });
      },
    }),
  ];
}
