// The single description of what lies in maps between the programs of `native/bpf` and the agent: structures, maps,
// numbers of reasons and flags. `generate.ts` writes both sides from it; `native/bpf/README.md` says what it all means.

/** Written as part of an attachment's metadata; maps of another version are not reused. */
export const BPF_SCHEMA_VERSION = 1;

/** Bytes are raw, addresses in network order with IPv4 in the first four bytes; ports are numbers in host order. */
export type BpfFieldType =
  "u8" | "u16" | "u32" | "u64" | `bytes${number}` | { readonly of: string; readonly count: number };

export interface BpfField {
  readonly name: string;
  readonly type: BpfFieldType;
  readonly about?: string;
  /** The kernel's: it copies around it. The first field, where there is one. */
  readonly lock?: true;
  /** The programs' own: the agent does not see it, and writes 0. */
  readonly internal?: true;
}

export interface BpfStruct {
  readonly name: string;
  readonly about: string;
  readonly fields: readonly BpfField[];
}

export interface BpfMapDescription {
  readonly name: string;
  readonly type: "hash" | "array" | "percpu_array" | "lru_hash" | "lpm_trie" | "ringbuf";
  /** Entries, or bytes of a ring. */
  readonly max: number;
  /** A structure, `u32` or `u64`. Absent: a ring. */
  readonly key?: string;
  readonly value?: string;
  readonly about: string;
}

const reserved = (name: string, type: BpfFieldType): BpfField => ({ name, type, about: "Zero." });

/** Fields that several structures have at their start: a direction of a connection. */
const tuple: readonly BpfField[] = [
  { name: "source", type: "bytes16" },
  { name: "destination", type: "bytes16" },
  { name: "source_port", type: "u16" },
  { name: "destination_port", type: "u16" },
];

const flowKey: readonly BpfField[] = [
  { name: "identity", type: "u32" },
  ...tuple,
  { name: "protocol", type: "u8", about: "As in the IP header, after extension headers." },
  { name: "verdict", type: "u8", about: "0 drop, 1 allow." },
  { name: "family", type: "u8", about: "4, 6, or 0 of a frame that is not IP, whose type is in `destination_port`." },
  reserved("reserved", "u8"),
];

export const bpfStructs: readonly BpfStruct[] = [
  {
    name: "interface_config",
    about: "What decides the packets of one interface. Replaced whole: a packet sees the old one or the new one.",
    fields: [
      { name: "policy_id", type: "u32", about: "Whose rules: allow, deny, ports and names are found under it." },
      { name: "identity", type: "u32", about: "What flows, drops and events are recorded under." },
      { name: "flags", type: "u32", about: "Bits of `INTERFACE_FLAGS`." },
      { name: "slot", type: "u32", about: "Place in the arrays, of this interface alone." },
      { name: "ct_epoch", type: "u32", about: "Not 0, random: connections of another epoch do not count." },
      { name: "ct_buckets", type: "u32", about: "A power of two; eight connections each. 0: nothing is remembered." },
      { name: "sample_rate", type: "u32", about: "One in this many allowed packets becomes an event; 0 none." },
      { name: "phase", type: "u32", about: "A number of `MIGRATION_PHASES`." },
      { name: "bytes_per_second", type: "u64", about: "0: no limit." },
      { name: "packets_per_second", type: "u64", about: "0: no limit." },
      { name: "fingerprint", type: "u64", about: "The agent's own: which policy this is. The programs do not look." },
      { name: "mark", type: "u32", about: "Bits set in the mark of what passes." },
      {
        name: "gateway4",
        type: "bytes4",
        about: "Where DHCP may go by unicast, and DNS whatever is allowed; or zero.",
      },
      { name: "source4", type: "bytes4", about: "With `anti_spoof`: the guest's address; zero: none is right." },
      { name: "router4", type: "bytes4", about: "With `anti_spoof` and `routed`: the namespace's own, also right." },
      { name: "source6", type: "bytes16", about: "With `anti_spoof`: besides link-local; zero: none besides." },
      { name: "source_mac", type: "bytes6", about: "With `anti_spoof`, not `routed`; zero: not checked." },
      reserved("reserved", "u16"),
      { name: "ifindex", type: "u32", about: "The key again." },
      {
        name: "seal",
        type: "u32",
        about: "`policy_id` again: with it the last word tells a whole element from a torn one.",
      },
    ],
  },
  {
    name: "lpm4_key",
    about: "An IPv4 rule of a policy.",
    fields: [
      { name: "prefix_bits", type: "u32", about: "32 for the policy, and the prefix: 64 in a question." },
      { name: "policy_id", type: "u32" },
      { name: "address", type: "bytes4" },
    ],
  },
  {
    name: "lpm6_key",
    about: "An IPv6 rule of a policy.",
    fields: [
      { name: "prefix_bits", type: "u32", about: "32 for the policy, and the prefix: 160 in a question." },
      { name: "policy_id", type: "u32" },
      { name: "address", type: "bytes16" },
    ],
  },
  {
    name: "port_key",
    about: "A port that a policy allows.",
    fields: [
      { name: "policy_id", type: "u32" },
      { name: "port", type: "u16", about: "0: any of the protocol." },
      { name: "protocol", type: "u8" },
      reserved("reserved", "u8"),
    ],
  },
  {
    name: "name_key",
    about: "A name that a policy allows in DNS questions or TLS greetings.",
    fields: [
      { name: "policy_id", type: "u32" },
      { name: "kind", type: "u32", about: "A number of `NAME_KINDS`." },
      { name: "hash", type: "u64", about: "FNV-1a of the lower-case name, last byte first; of `*.x` that of `x`." },
    ],
  },
  {
    name: "connection_bucket_key",
    about: "Where connections of an interface are that have the same hash.",
    fields: [
      { name: "slot", type: "u32" },
      { name: "bucket", type: "u32", about: "Less than `ct_buckets`." },
    ],
  },
  {
    name: "connection",
    about:
      "One direction, guest to outside, of one connection that was judged; in use when its epoch is its interface's.",
    fields: [
      ...tuple,
      { name: "protocol", type: "u8" },
      { name: "family", type: "u8" },
      reserved("reserved", "u16"),
      { name: "last_seen_ns", type: "u64" },
      { name: "policy_id", type: "u32", about: "Judged by this policy; by another, it is judged again." },
      { name: "epoch", type: "u32" },
      { name: "flags", type: "u32", about: "Bits of `CONNECTION_FLAGS`." },
      reserved("reserved2", "u32"),
      { name: "packets", type: "u64", about: "That passed; when it makes room they are added to its flow." },
      { name: "bytes", type: "u64" },
    ],
  },
  {
    name: "connection_bucket",
    about: "Connections of one interface with the same hash. The oldest makes room, so a guest can only crowd itself.",
    fields: [
      { name: "lock", type: "u32", lock: true },
      { name: "sequence", type: "u32", about: "Odd while it is written.", internal: true },
      { name: "connections", type: { of: "connection", count: 8 } },
    ],
  },
  {
    name: "limiter",
    about: "When each budget of an interface is used up to; a budget is full when that is past.",
    fields: [
      { name: "lock", type: "u32", lock: true },
      reserved("reserved", "u32"),
      { name: "bytes_until_ns", type: "u64" },
      { name: "packets_until_ns", type: "u64" },
      { name: "control_until_ns", type: "u64", about: "DHCP and neighbour discovery." },
    ],
  },
  {
    name: "traffic",
    about: "What an interface's packets came to, on one CPU.",
    fields: [
      { name: "allowed_packets", type: "u64" },
      { name: "allowed_bytes", type: "u64" },
      { name: "dropped_packets", type: "u64" },
      { name: "dropped_bytes", type: "u64" },
    ],
  },
  { name: "flow_key", about: "Packets that were decided alike.", fields: flowKey },
  {
    name: "flow_counters",
    about: "How many they were.",
    fields: [
      { name: "packets", type: "u64" },
      { name: "bytes", type: "u64" },
      { name: "last_seen_ns", type: "u64" },
    ],
  },
  {
    name: "drop_key",
    about: "Packets that were denied alike; `verdict` is 0.",
    fields: [
      ...flowKey,
      { name: "reason", type: "u32", about: "A number of `DROP_REASONS`." },
      { name: "action", type: "u32", about: "0 dropped, 1 let through by audit." },
    ],
  },
  {
    name: "flow_event",
    about: "One packet, in the ring: each that is denied, and the sampled ones.",
    fields: [
      { name: "timestamp_ns", type: "u64" },
      { name: "identity", type: "u32" },
      { name: "ifindex", type: "u32" },
      { name: "source", type: "bytes16" },
      { name: "destination", type: "bytes16" },
      { name: "bytes", type: "u32" },
      { name: "source_port", type: "u16" },
      { name: "destination_port", type: "u16" },
      { name: "protocol", type: "u8" },
      { name: "verdict", type: "u8", about: "0 also for what audit let through." },
      { name: "family", type: "u8" },
      { name: "reason", type: "u8", about: "0 of an allowed one." },
      { name: "action", type: "u8" },
      reserved("reserved", "u8"),
      reserved("reserved2", "u16"),
    ],
  },
  {
    name: "learned_address",
    about: "What the guest was last seen to have.",
    fields: [
      { name: "address", type: "bytes4" },
      { name: "origin", type: "u32", about: "A number of `LEARNED_FROM`; 0: nothing was seen." },
      { name: "last_seen_ns", type: "u64" },
    ],
  },
  {
    name: "block4_key",
    about: "A source that the host takes nothing from.",
    fields: [
      { name: "prefix_bits", type: "u32" },
      { name: "address", type: "bytes4" },
    ],
  },
  {
    name: "block6_key",
    about: "A source that the host takes nothing from.",
    fields: [
      { name: "prefix_bits", type: "u32" },
      { name: "address", type: "bytes16" },
    ],
  },
];

/** Interfaces on one host at most: places in the arrays. */
export const SLOTS = 4096;

const rules = 262_144;
const names = 65_536;

/** Of `fluxvm_tc.bpf.o`. */
export const trafficMaps: readonly BpfMapDescription[] = [
  { name: "fluxvm_iface", type: "hash", max: SLOTS, key: "u32", value: "interface_config", about: "ifindex → how" },
  { name: "fluxvm_allow4", type: "lpm_trie", max: rules, key: "lpm4_key", value: "u32", about: "`RULE_FLAGS`" },
  { name: "fluxvm_allow6", type: "lpm_trie", max: rules, key: "lpm6_key", value: "u32", about: "`RULE_FLAGS`" },
  { name: "fluxvm_deny4", type: "lpm_trie", max: rules, key: "lpm4_key", value: "u32", about: "`RULE_FLAGS`" },
  { name: "fluxvm_deny6", type: "lpm_trie", max: rules, key: "lpm6_key", value: "u32", about: "`RULE_FLAGS`" },
  { name: "fluxvm_ports", type: "hash", max: names, key: "port_key", value: "u32", about: "1" },
  { name: "fluxvm_names", type: "hash", max: names, key: "name_key", value: "u32", about: "`NAME_FLAGS`" },
  {
    name: "fluxvm_ct",
    type: "hash",
    max: 524_288,
    key: "connection_bucket_key",
    value: "connection_bucket",
    about: "connections; made by the programs as they are needed",
  },
  { name: "fluxvm_rate", type: "array", max: SLOTS, key: "u32", value: "limiter", about: "slot → budgets" },
  { name: "fluxvm_stats", type: "percpu_array", max: SLOTS, key: "u32", value: "traffic", about: "slot → totals" },
  {
    name: "fluxvm_flows",
    type: "lru_hash",
    max: 65_536,
    key: "flow_key",
    value: "flow_counters",
    about: "not of connections",
  },
  { name: "fluxvm_drops", type: "lru_hash", max: 32_768, key: "drop_key", value: "flow_counters", about: "denials" },
  { name: "fluxvm_events", type: "ringbuf", max: 1_048_576, about: "`flow_event`; lost when it is full" },
  { name: "fluxvm_learned", type: "array", max: SLOTS, key: "u32", value: "learned_address", about: "slot → address" },
  { name: "fluxvm_clock", type: "array", max: 1, key: "u32", value: "u64", about: "ns; 0: the kernel's. For tests" },
];

/** Of `fluxvm_xdp.bpf.o`. */
export const guardMaps: readonly BpfMapDescription[] = [
  { name: "fvm_xdp_block4", type: "lpm_trie", max: 4096, key: "block4_key", value: "u32", about: "1" },
  { name: "fvm_xdp_block6", type: "lpm_trie", max: 4096, key: "block6_key", value: "u32", about: "1" },
  { name: "fvm_xdp_stats", type: "percpu_array", max: 2, key: "u32", value: "u64", about: "0 dropped, 1 passed" },
];

/** Names of programs, by what they are attached to. */
export const bpfPrograms = {
  /** Ingress of the host's side: what the guest sends. It decides. */
  egress: "fluxvm_egress",
  /** Egress of the host's side: what the guest gets. It only learns. */
  ingress: "fluxvm_ingress",
  /** XDP of the host's own interface. */
  guard: "fluxvm_xdp_guard",
} as const;

/** Bits by position. */
export const interfaceFlags = [
  "default_allow",
  "enforce_cidrs",
  "enforce_ports",
  "allow_icmp",
  "audit",
  "deny_udp",
  "dns_names",
  "sni_names",
  "anti_spoof",
  "learn",
  "routed",
] as const;
export const connectionFlags = ["reply", "greeted"] as const;
/** `exact`: the rule is one whole address. */
export const ruleFlags = ["rule", "exact"] as const;
/** `exact`: the name itself; `below`: what ends in it after a dot. */
export const nameFlags = ["exact", "below"] as const;

/** By number. */
export const nameKinds = ["dns", "sni"] as const;
export const learnedFrom = ["none", "arp", "ip"] as const;
export const migrationPhases = ["running", "quiescing", "restoring"] as const;
/** As the wire has them; the empty one is no reason. */
export const dropReasons = [
  "none",
  "malformed-l4",
  "fragmented-l4",
  "explicit-cidr-deny",
  "cidr-miss",
  "l4-miss",
  "pod-policy-deny",
  "rate-limit",
  "default-deny",
  "migration-quiesce",
  "migration-restoring",
  "unsupported-ethertype",
  "udp-deny",
  "spoof-mac",
  "spoof-ip",
  "dns-deny",
  "sni-deny",
] as const;

/** Numbers that both sides count with. */
export const bpfConstants = {
  TCP_IDLE_SECONDS: 7200,
  UDP_IDLE_SECONDS: 120,
  OTHER_IDLE_SECONDS: 30,
  /** DHCP and neighbour discovery, packets a second and at once. */
  CONTROL_PACKETS_PER_SECOND: 64,
  /** How far a budget may be drawn on ahead. */
  BURST_NS: 1_000_000_000,
  NAME_BYTES_MAX: 128,
} as const;
