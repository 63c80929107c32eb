// Wire shapes of what was seen: counters, drops, connections, captures, the host's view of all sandboxes.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { listOf, nullable } from "../schema.ts";
import { flowCounters, flowFields, flowSchema } from "./flow.ts";

export const limitQuery = Type.Object({
  limit: Type.Optional(
    Type.Integer({
      description: `At most so many, ${limits.flowsPageDefault} when unset, up to ${limits.flowsPageMax}.`,
    }),
  ),
});

/** A limit of the query within its bounds. */
export const clamped = (limit: number = limits.flowsPageDefault): number =>
  Math.min(Math.max(1, limit), limits.flowsPageMax);

export const statsSchema = Type.Object(
  {
    allowed_packets: Type.Integer(),
    allowed_bytes: Type.Integer(),
    dropped_packets: Type.Integer(),
    dropped_bytes: Type.Integer(),
  },
  { $id: "NetworkStats", additionalProperties: false },
);

export const flowList = listOf(flowSchema);

const dropSchema = Type.Object(
  {
    ...flowFields,
    ...flowCounters,
    reason_code: Type.Integer(),
    reason: Type.String(),
    action: Type.Union([Type.Literal("drop"), Type.Literal("audit")]),
  },
  { $id: "DropReason", additionalProperties: false },
);
export const dropList = listOf(dropSchema);

const connectionSchema = Type.Object(
  {
    ...flowFields,
    last_seen_ns: flowCounters.last_seen_ns,
    origin: Type.Union([Type.Literal("egress"), Type.Literal("reply")]),
  },
  { $id: "ConnectionEntry", additionalProperties: false },
);
export const connectionList = listOf(connectionSchema);

export const conntrackBody = Type.Object({ action: Type.Literal("flush") }, { $id: "ChangeConntrack" });

export const learnedSchema = Type.Object(
  { ip: nullable(Type.String()), source: nullable(Type.String({ description: "`arp`, `ip`, or `lease`." })) },
  { $id: "LearnedAddress", additionalProperties: false },
);

export const captureBody = Type.Object(
  {
    seconds: Type.Optional(
      Type.Integer({ minimum: 1, maximum: limits.captureSecondsMax, description: "10 when unset." }),
    ),
    packets: Type.Optional(
      Type.Integer({
        minimum: 1,
        maximum: limits.capturePacketsMax,
        description: "As many as are allowed when unset.",
      }),
    ),
  },
  { $id: "BeginCapture" },
);

export const captureSchema = Type.Object(
  {
    token: Type.String(),
    vm_id: Type.String(),
    interface: Type.String(),
    seconds: Type.Integer(),
    packets: Type.Integer(),
    started_at: Type.String({ description: "RFC 3339, UTC" }),
    state: Type.Union(["running", "done", "failed"].map((state) => Type.Literal(state))),
    bytes: Type.Integer(),
  },
  { $id: "Capture", additionalProperties: false },
);
export const captureList = listOf(captureSchema);

export const identitySchema = Type.Object(
  { id: Type.Integer(), name: Type.String(), labels: Type.Array(Type.String()), reserved: Type.Boolean() },
  { $id: "NetworkIdentity", additionalProperties: false },
);
export const identityList = listOf(identitySchema);

const ipcacheSchema = Type.Object(
  {
    ip: Type.String(),
    identity: Type.Integer(),
    vm_id: Type.String({ description: "The nil UUID for what is elsewhere." }),
  },
  { $id: "IpcacheEntry", additionalProperties: false },
);
export const ipcacheList = listOf(ipcacheSchema);

export const ipamSchema = Type.Object(
  {
    capacity: Type.Integer({ description: "Blocks of addresses, one a sandbox." }),
    allocated: Type.Integer({ description: "Not free: held by a sandbox, or in quarantine." }),
    quarantined: Type.Integer({
      description:
        "Those of `allocated` whose sandbox is gone. They are free when nothing on the host can be using them, which is " +
        "looked at in rounds, and at once when no other is left.",
    }),
    free: Type.Integer(),
    utilization_percent: Type.Number(),
    near_exhaustion: Type.Boolean(),
  },
  { $id: "Ipam", additionalProperties: false },
);

export const healthSchema = Type.Object(
  {
    mode: Type.String(),
    required: Type.Boolean(),
    default_allow: Type.Boolean(),
    bpf_object: nullable(Type.String({ description: "Which object is loaded: a path, or `embedded`." })),
    bpf_object_present: Type.Boolean(),
    pin_root_present: Type.Boolean(),
    bpffs_present: Type.Boolean(),
    cilium_socket_present: Type.Boolean(),
    groups: Type.Integer(),
    policies: Type.Integer(),
    ipcache_entries: Type.Integer(),
    ok: Type.Boolean(),
    notes: Type.Array(Type.String()),
  },
  { $id: "NetworkHealth", additionalProperties: false },
);

const endpointSchema = Type.Object(
  {
    id: Type.Integer(),
    uuid: Type.String(),
    name: Type.String(),
    identity: Type.Integer(),
    identity_source: Type.String(),
    "identity-labels": Type.Array(Type.String()),
    networking: Type.Object(
      {
        addressing: Type.Array(
          Type.Object(
            { ipv4: nullable(Type.String()), ipv6: nullable(Type.String()) },
            { additionalProperties: false },
          ),
        ),
      },
      { additionalProperties: false },
    ),
    state: Type.Literal("ready"),
    policy: Type.Object(
      { ingress: Type.Boolean(), egress: Type.Boolean(), audit: Type.Boolean() },
      { additionalProperties: false },
    ),
  },
  { $id: "NetworkEndpoint", additionalProperties: false },
);
export const endpointList = listOf(endpointSchema);

export const snapshotSchema = Type.Object(
  {
    health: healthSchema,
    ipam: ipamSchema,
    groups: Type.Integer(),
    documents: Type.Integer(),
    remote_ranges: Type.Integer(),
    host_names: Type.Array(Type.String(), { description: "Names that policies in force have." }),
    endpoints: Type.Array(endpointSchema),
  },
  { $id: "NetworkSnapshot", additionalProperties: false },
);

const partySchema = Type.Object(
  { identity: Type.Integer(), labels: Type.Array(Type.String()), pod_name: Type.String() },
  { additionalProperties: false },
);

const hubbleFlowSchema = Type.Object(
  {
    time: Type.String({ description: "RFC 3339, UTC" }),
    verdict: Type.Union(["FORWARDED", "DROPPED", "AUDIT"].map((verdict) => Type.Literal(verdict))),
    drop_reason_desc: nullable(Type.String()),
    IP: Type.Object(
      { source: Type.String(), destination: Type.String(), ipVersion: Type.String() },
      { additionalProperties: false },
    ),
    l4: Type.Object(
      { protocol: Type.String(), source_port: Type.Integer(), destination_port: Type.Integer() },
      { additionalProperties: false },
    ),
    source: partySchema,
    destination: partySchema,
    Type: Type.String(),
    node_name: Type.String(),
    traffic_direction: Type.String(),
    summary: Type.String(),
    packets: Type.Integer(),
    bytes: Type.Integer(),
    hops: Type.Array(
      Type.Object(
        { index: Type.Integer(), name: Type.String(), role: Type.String(), detail: Type.String() },
        { additionalProperties: false },
      ),
    ),
  },
  { $id: "HubbleFlow", additionalProperties: false },
);
export const hubbleList = listOf(hubbleFlowSchema);
