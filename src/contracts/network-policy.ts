// What a sandbox may send, compiled: groups are merged, entities and names are addresses, and nothing is left to decide
// but packets. `src/network` makes it from what people declare; dataplanes enforce it.

export type PortProtocol = "tcp" | "udp" | "sctp" | "icmp" | "icmp6";

export interface AllowedPort {
  readonly protocol: PortProtocol;
  /** 0 with `icmp` and `icmp6`. */
  readonly port: number;
}

/** Names that DNS questions (UDP and TCP 53) or TLS greetings (TCP 443) may have. Null where any may. */
export interface AllowedNames {
  /** Lower case. `*.example.org` is everything below it and not itself. */
  readonly dns: readonly string[] | null;
  readonly sni: readonly string[] | null;
}

/** Only `hook: "bridged"` interfaces see a guest's own hardware address. */
export interface GuestSource {
  readonly antiSpoof: boolean;
  /** Learn the guest's IPv4 address from what it sends. */
  readonly learn: boolean;
  readonly mac: string | null;
  readonly ipv4: string | null;
  readonly ipv6: string | null;
}

export interface EffectivePolicy {
  /** The sandbox's own, in 0x1000_0000 to 0x7fff_ffff: apart from groups (0x1_0000 up) and from reserved ones. */
  readonly identity: number;
  readonly defaultAllow: boolean;
  /** Destinations were declared: what is not in `allowCidrs` is denied, also when that is empty. */
  readonly enforceCidrs: boolean;
  /** Ports were declared: likewise. */
  readonly enforcePorts: boolean;
  /** `10.0.0.0/8`, `fd00::/8`: host bits are zero; sorted, each once. */
  readonly allowCidrs: readonly string[];
  readonly denyCidrs: readonly string[];
  readonly allowPorts: readonly AllowedPort[];
  readonly bytesPerSecond: number | null;
  readonly packetsPerSecond: number | null;
  /** One in this many allowed packets becomes an event; 0 none. */
  readonly sampleRate: number;
  readonly allowIcmp: boolean;
  /** Denials are recorded and let through. */
  readonly audit: boolean;
  readonly denyUdp: boolean;
  readonly names: AllowedNames;
  readonly source: GuestSource;
  /** What only a program in the kernel enforces, by field name; empty where nftables can do all of it. */
  readonly nativeOnly: readonly string[];
  /** Hexadecimal digest of all of the above. */
  readonly fingerprint: string;
}
