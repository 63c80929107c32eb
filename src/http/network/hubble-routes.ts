// Routes of flows in the words of Hubble: as JSON, as text, and as a page.
import { hostname } from "node:os";
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { HUBBLE_VERDICTS, type HubbleFilter, type HubbleFlow, type HubbleParty } from "../../network/hubble.ts";
import { flowLines, TEXT_FORMS } from "../../network/hubble-text.ts";
import type { NetworkServices } from "../../network/services.ts";
import { defineRoute, type Route } from "../route.ts";
import { hubblePage, PAGE_HEADERS } from "./hubble-page.ts";
import { hubbleList } from "./observation-schema.ts";

const BASE = "/v1/network/hubble";
const DEFAULT_LIMIT = 64;
const TEXT = "text/plain; charset=utf-8";
const marks = { auth: "reader", guard: "host", tag: "network" } as const;
const errors = ["CAPABILITY_MISSING", "DATAPLANE_FAILED"] as const;

const words = (values: readonly string[]) => Type.Union(values.map((value) => Type.Literal(value)));
const filterFields = {
  limit: Type.Optional(Type.Integer({ description: `${DEFAULT_LIMIT} when unset, up to ${limits.flowsPageMax}.` })),
  verdict: Type.Optional(words(["all", ...HUBBLE_VERDICTS, ...HUBBLE_VERDICTS.map((word) => word.toLowerCase())])),
  protocol: Type.Optional(Type.String({ maxLength: 16, description: '"all", "tcp", "udp", "icmpv4" and so on.' })),
};

export function hubbleRoutes({ hubble }: NetworkServices): readonly Route[] {
  return [
    defineRoute({
      ...marks,
      method: "GET",
      path: `${BASE}/flows`,
      summary: "Lists flows of all sandboxes, newest first, with who is at both ends.",
      query: Type.Object(filterFields),
      success: { status: 200, schema: hubbleList },
      errors,
      handler: async ({ query }) => ({ items: (await hubble.flows(filterOf(query))).map(hubbleReply) }),
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: `${BASE}/flows/text`,
      summary: "Lists the same as lines of text.",
      query: Type.Object({
        ...filterFields,
        output: Type.Optional(words(TEXT_FORMS)),
        detailed: Type.Optional(words(["true", "false", "1", "0"])),
      }),
      success: { status: 200, contentTypes: [TEXT] },
      errors,
      handler: async ({ query }) => {
        const { output = "plain", detailed } = query as { output?: (typeof TEXT_FORMS)[number]; detailed?: string };
        const flows = await hubble.flows(filterOf(query));
        const text =
          output === "json"
            ? flows.map((flow) => `${JSON.stringify(hubbleReply(flow))}\n`).join("")
            : flowLines(flows, output, detailed === "true" || detailed === "1");
        return new Response(text, { headers: { "content-type": TEXT } });
      },
    }),
    defineRoute({
      ...marks,
      method: "GET",
      path: `${BASE}/ui`,
      summary: "Shows the newest flows as a page that renews itself.",
      success: { status: 200, contentTypes: [PAGE_HEADERS["content-type"]] },
      errors,
      handler: async () => {
        const flows = await hubble.flows({ limit: DEFAULT_LIMIT, verdict: null, protocol: null });
        return new Response(hubblePage(flows), { headers: PAGE_HEADERS });
      },
    }),
  ];
}

interface FilterQuery {
  readonly limit?: number;
  readonly verdict?: unknown;
  readonly protocol?: string;
}

function filterOf({ limit = DEFAULT_LIMIT, verdict, protocol = "all" }: FilterQuery): HubbleFilter {
  const word = String(verdict ?? "all").toUpperCase();
  return {
    limit: Math.min(Math.max(1, limit), limits.flowsPageMax),
    verdict: HUBBLE_VERDICTS.find((known) => known === word) ?? null,
    protocol: protocol === "all" ? null : protocol,
  };
}

function hubbleReply(flow: HubbleFlow) {
  const { source, destination, from, to } = flow;
  return {
    time: new Date(flow.timeUnixMs).toISOString(),
    verdict: flow.verdict,
    drop_reason_desc: flow.reason,
    IP: { source, destination, ipVersion: `IPv${flow.family}` },
    l4: { protocol: flow.protocol, source_port: flow.sourcePort, destination_port: flow.destinationPort },
    source: partyReply(from),
    destination: partyReply(to),
    Type: "L3_L4",
    node_name: hostname(),
    traffic_direction: "EGRESS",
    summary: flow.summary,
    packets: Number(flow.packets),
    bytes: Number(flow.bytes),
    hops: [
      { index: 0, name: from.name, role: "source", detail: source },
      { index: 1, name: hostname(), role: "dataplane", detail: flow.reason ?? flow.verdict },
      // What was dropped came no further.
      ...(flow.verdict === "DROPPED" ? [] : [{ index: 2, name: to.name, role: "destination", detail: destination }]),
    ],
  };
}

function partyReply({ identity, labels, name }: HubbleParty) {
  return { identity, labels, pod_name: name };
}
