// Wire shapes of what is declared: policies, edges, groups, documents.
import { type TObject, Type } from "@sinclair/typebox";
import { listOf, nullable } from "../schema.ts";

const texts = (description: string) => Type.Array(Type.String(), { description });

const policyFields = Type.Object({
  default_allow: Type.Boolean({
    description: "What no rule names is allowed; a list of what is allowed forbids the rest.",
  }),
  allow_cidrs: texts('Ranges that may be reached, such as "10.0.0.0/8" or "fd00::/8".'),
  allow_ports: texts('Ports that may be reached, such as "tcp/443", "udp/53" or "icmp/0"; with ranges, both must fit.'),
  max_egress_mbps: nullable(Type.Integer({ description: "Megabits a second, from 1." })),
  max_egress_pps: nullable(Type.Integer({ description: "Packets a second, from 1." })),
  sample_rate: Type.Integer({ description: "One in this many allowed packets is an event; 0 none." }),
  deny_cidrs: texts("Ranges that may not be reached, whatever allows them."),
  allow_icmp: Type.Boolean({ description: "ICMP to what is not denied." }),
  groups: texts("Names of groups that apply."),
  labels: texts("Labels by which groups apply."),
  allow_fqdns: texts("Host names whose public addresses may be reached; one without an address allows nothing."),
  entities: texts('Words for ranges: "world", "host", "cluster" and others.'),
  audit_mode: Type.Boolean({ description: "What would be denied is recorded and let through." }),
  deny_udp: Type.Boolean({
    description: "UDP and SCTP are denied, except for DHCP and the names of the sandbox's own gateway.",
  }),
});

const edgeFields = Type.Object({
  anti_spoof: nullable(
    Type.Boolean({
      description:
        "Only its own addresses may be a packet's source; by the network when null. Always, where the agent gave the address.",
    }),
  ),
  learn_ip: nullable(
    Type.Boolean({ description: "Its IPv4 address is learned from what it sends; by the network when null." }),
  ),
  mac: nullable(Type.String({ description: "Its hardware address, where it is not the one that it was given." })),
  ipv4: nullable(Type.String()),
  ipv6: nullable(Type.String()),
  dns_names: nullable(
    texts('Names that DNS questions may have, such as "example.org" or "*.example.org"; any when null.'),
  ),
  sni_names: nullable(texts("Names that TLS greetings on TCP 443 may have; any when null.")),
  max_egress_mbps: nullable(Type.Integer({ description: "The lesser of this and the policy's holds." })),
  max_egress_pps: nullable(Type.Integer()),
});

/** Every field may be missing; an unknown one is refused by the policy's own check. */
const asBody = (fields: TObject, $id: string) => Type.Object(Type.Partial(fields).properties, { $id });

export const policySchema = Type.Object(policyFields.properties, { $id: "NetworkPolicy", additionalProperties: false });
export const policyBody = asBody(policyFields, "SetNetworkPolicy");
export const edgeSchema = Type.Object(edgeFields.properties, { $id: "NetworkEdge", additionalProperties: false });
export const edgeBody = asBody(edgeFields, "SetNetworkEdge");

export const groupSchema = Type.Object(
  {
    name: Type.String(),
    labels: texts("Sorted; the group applies to sandboxes that have all of them."),
    policy: policySchema,
    identity: Type.Integer(),
    priority: Type.Integer({ description: "Lower ones are listed first." }),
    description: nullable(Type.String()),
  },
  { $id: "NetworkGroup", additionalProperties: false },
);

export const groupBody = Type.Object(
  {
    name: Type.String({ description: "1 to 64 of A-Z, a-z, 0-9, _ and -." }),
    labels: Type.Optional(texts("1 to 128 of A-Z, a-z, 0-9 and =/.:_- each.")),
    policy: Type.Optional(policyBody),
    identity: Type.Optional(
      Type.Integer({ description: "From 65536 to 268435455; of the labels when it is missing." }),
    ),
    priority: Type.Optional(Type.Integer()),
    description: Type.Optional(Type.String()),
  },
  { $id: "SetNetworkGroup" },
);

export const groupList = listOf(groupSchema);

export const documentSchema = Type.Record(Type.String(), Type.Unknown(), {
  description: "A CiliumNetworkPolicy or CiliumClusterwideNetworkPolicy.",
});
export const documentList = listOf(documentSchema);
export const deletedSchema = Type.Object(
  { deleted: Type.String() },
  { $id: "DeletedName", additionalProperties: false },
);

export const effectiveSchema = Type.Object(
  {
    vm_id: Type.String(),
    vm_identity: Type.Integer(),
    declared: policySchema,
    membership: Type.Object(
      {
        vm_groups: texts("Groups that the policy names."),
        vm_labels: texts("Labels of the policy."),
        matched: Type.Array(groupSchema),
        identities: Type.Array(Type.Integer(), { description: "The sandbox's own, then those of its groups." }),
      },
      { additionalProperties: false },
    ),
    effective: policySchema,
    group_identities: Type.Array(Type.Integer()),
    enforce_cidrs: Type.Boolean({ description: "Destinations that are not in `allow_cidrs` are denied." }),
    enforce_ports: Type.Boolean(),
    anti_spoof: Type.Boolean(),
    unresolved_names: texts("Host names without an address that could be allowed."),
    native_only: texts("Fields that only a program in the kernel enforces."),
    fingerprint: Type.String(),
  },
  { $id: "EffectiveNetwork", additionalProperties: false },
);

export const statusSchema = Type.Object(
  {
    mode: Type.String({ description: "`ebpf`, `legacy` or `cilium`." }),
    required: Type.Boolean(),
    attached: Type.Boolean({ description: "Our programs are on the interface; never so where nftables decides." }),
    interface: nullable(Type.String()),
    identity: Type.Integer(),
    pin_dir: nullable(Type.String()),
    schema_version: nullable(Type.Integer()),
    schema_compatible: Type.Boolean(),
    policy_synced: Type.Boolean({ description: "Nothing else than what is declared is in force." }),
    enforcement: Type.Union([Type.Literal("in_force"), Type.Literal("no_network"), Type.Literal("out_of_sync")], {
      description:
        "`in_force`: packets are decided by what is declared. `no_network`: it is stored, and there is no network to " +
        "enforce it on. `out_of_sync`: something else is in force, or nothing is known to be.",
    }),
    method: nullable(Type.String({ description: "`tcx`, `tc` or `nft`." })),
    policy: policySchema,
    fault: nullable(Type.String({ description: "Why the stored policy cannot be used; then everything is denied." })),
  },
  { $id: "NetworkStatus", additionalProperties: false },
);
