// A flow in the wire's words.
import { type Static, Type } from "@sinclair/typebox";
import type { Flow } from "../../contracts/dataplane.ts";

/** What every row about packets of one direction of a connection begins with. */
export const flowFields = {
  identity: Type.Integer(),
  family: Type.Union([Type.Literal(4), Type.Literal(6)]),
  source: Type.String(),
  destination: Type.String(),
  source_port: Type.Integer(),
  destination_port: Type.Integer(),
  protocol: Type.Integer({ description: "Number of the protocol: 1 ICMP, 6 TCP, 17 UDP." }),
};

export const flowCounters = {
  packets: Type.Integer(),
  bytes: Type.Integer(),
  last_seen_ns: Type.Integer({ description: "On the host's monotonic clock." }),
};

export const verdictSchema = Type.Union([Type.Literal("allow"), Type.Literal("drop")]);

export const flowSchema = Type.Object(
  { ...flowFields, verdict: verdictSchema, ...flowCounters },
  { $id: "Flow", additionalProperties: false },
);

type FlowHead = Omit<Flow, "verdict" | "packets" | "bytes" | "lastSeenNs">;

/** Who and where, in words of the wire. */
export function flowFieldsReply({ identity, family, source, destination, protocol, ...ports }: FlowHead) {
  const { sourcePort: source_port, destinationPort: destination_port } = ports;
  return { identity, family, source, destination, source_port, destination_port, protocol };
}

/** How much and when, in words of the wire; the time is of the host's monotonic clock. */
export function flowCountersReply({ packets, bytes, lastSeenNs }: Pick<Flow, "packets" | "bytes" | "lastSeenNs">) {
  return { packets: Number(packets), bytes: Number(bytes), last_seen_ns: Number(lastSeenNs) };
}

export function flowReply(flow: Flow): Static<typeof flowSchema> {
  return { ...flowFieldsReply(flow), verdict: flow.verdict, ...flowCountersReply(flow) };
}
