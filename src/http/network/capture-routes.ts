// Routes of captures: begun in the background, listed, and fetched as files when they are over.
import { limits } from "../../config/limits.ts";
import type { Capture } from "../../network/captures.ts";
import { withoutNetwork } from "../../network/failures.ts";
import type { NetworkServices } from "../../network/services.ts";
import { defineRoute, type Route } from "../route.ts";
import { captureBody, captureList, captureSchema } from "./observation-schema.ts";

const BASE = "/v1/vms/:id/network/capture";
const PCAP = "application/vnd.tcpdump.pcap";
const DEFAULT_SECONDS = 10;
const marks = { auth: "admin", guard: "sandbox", tag: "network" } as const;

export function captureRoutes({ fabric, captures }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "POST",
      path: BASE,
      summary: "Begins to copy the packets of a sandbox's interface, for a short time; one at a time a sandbox.",
      body: captureBody,
      bodyOptional: true,
      success: { status: 200, schema: captureSchema },
      errors: ["BAD_REQUEST", "CAPTURE_BUSY", "CAPABILITY_MISSING", "INVALID_STATE"],
      handler: async ({ id, body }) => {
        const connection = fabric.connected.get(id);
        if (connection === undefined) throw withoutNetwork();
        const { hostInterface } = connection.sandbox.network;
        const { seconds = DEFAULT_SECONDS, packets = limits.capturePacketsMax } = body;
        return captureReply(await captures.begin(id, { interface: hostInterface, seconds, packets }));
      },
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: BASE,
      summary: "Lists captures of a sandbox that are kept, newest first.",
      success: { status: 200, schema: captureList },
      handler: ({ id }) => ({ items: captures.of(id).map(captureReply) }),
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: `${BASE}/:token`,
      summary: "Sends the packets of a capture that is over, as a pcap file.",
      success: { status: 200, contentTypes: [PCAP] },
      errors: ["CAPTURE_BUSY", "CAPTURE_NOT_FOUND"],
      handler: ({ id, params }) =>
        new Response(Bun.file(captures.file(id, params.token ?? "")), { headers: { "content-type": PCAP } }),
    }),
  ];
}

function captureReply(capture: Capture) {
  const { token, sandboxId, interface: name, seconds, packets, startedAtUnixMs, state, bytes } = capture;
  const started_at = new Date(startedAtUnixMs).toISOString();
  return { token, vm_id: sandboxId, interface: name, seconds, packets, started_at, state, bytes };
}
