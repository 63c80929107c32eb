// Random policies and situations over a small world, so that rules and packets meet.
import { createHash } from "node:crypto";
import type { AllowedPort, EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import type { Phase, Situation } from "./model.ts";
import type { Random } from "./random.ts";

export const GUEST4 = "169.254.5.35";
export const ROUTER4 = "169.254.5.34";
export const GATEWAY4 = "169.254.5.33";
export const GUEST6 = "fd00:1:0:0:0:0:0:35";
export const GUEST_MAC = "02:fc:00:00:00:03";
export const NAMES = ["example.org", "a.example.org", "b.a.example.org", "evil.test", "xexample.org", "org"] as const;

const RANGES = [
  "0.0.0.0/0",
  "10.0.0.0/8",
  "10.1.0.0/16",
  "10.1.2.0/24",
  "10.1.2.3/32",
  "10.1.2.4/31",
  "128.0.0.0/1",
  "169.254.0.0/16",
  "169.254.169.254/32",
  "169.254.5.32/28",
  "::/0",
  "fd00::/8",
  "fd00:1::/32",
  "fd00:1::7/128",
  "fd00:ec2::254/128",
  "fe80::/10",
  "ff00::/8",
  "2001:db8::/63",
] as const;
const PORTS: readonly AllowedPort[] = [
  { protocol: "tcp", port: 443 },
  { protocol: "tcp", port: 80 },
  { protocol: "tcp", port: 53 },
  { protocol: "udp", port: 53 },
  { protocol: "udp", port: 443 },
  { protocol: "sctp", port: 80 },
  { protocol: "icmp", port: 0 },
  { protocol: "icmp6", port: 0 },
];
const PATTERNS = [...NAMES.slice(0, 4), "*.example.org", "*.a.example.org", "*.org", "*.evil.test"] as const;

export const IDENTITY = 0x1000_0007;

/** Some stories are about one thing, so that nothing else stands before it. */
const THEMES: readonly Partial<EffectivePolicy>[] = [
  {},
  {},
  {},
  { defaultAllow: true, enforceCidrs: false, enforcePorts: false, denyCidrs: [], denyUdp: false },
  {
    defaultAllow: true,
    enforceCidrs: false,
    denyCidrs: [],
    names: { dns: PATTERNS.slice(0, 5), sni: PATTERNS.slice(1) },
  },
];

export function randomPolicy(random: Random): EffectivePolicy {
  const often = random.of([2, 3, 6]);
  const rate = (choices: readonly number[]): number | null => (random.once(4) ? random.of(choices) : null);
  const policy = {
    identity: IDENTITY + random.below(2),
    defaultAllow: random.once(2),
    enforceCidrs: random.once(3),
    enforcePorts: random.once(3),
    allowCidrs: random.some(RANGES, often),
    denyCidrs: random.some(RANGES, random.of([4, 12, 40])),
    allowPorts: random.some(PORTS),
    bytesPerSecond: rate([125_000, 4000, 1_000_000_000_000]),
    packetsPerSecond: rate([1, 40, 1000]),
    sampleRate: random.of([0, 0, 1]),
    allowIcmp: random.once(3),
    audit: random.once(5),
    denyUdp: random.once(5),
    names: {
      dns: random.once(3) ? random.some(PATTERNS, 4) : null,
      sni: random.once(3) ? random.some(PATTERNS, 4) : null,
    },
    source: {
      antiSpoof: random.once(6),
      learn: random.once(3),
      mac: random.once(4) ? null : GUEST_MAC,
      ipv4: random.once(2) ? GUEST4 : null,
      ipv6: random.once(2) ? GUEST6 : null,
    },
    nativeOnly: [],
    ...random.of(THEMES),
  };
  return { ...policy, fingerprint: createHash("sha256").update(JSON.stringify(policy)).digest("hex") };
}

export function randomPhase(random: Random): Phase {
  return random.once(6) ? random.of(["quiescing", "restoring"]) : "running";
}

/** A situation on the loopback interface, where test runs are. */
export function randomSituation(random: Random, policyId: number): Situation {
  return {
    policy: randomPolicy(random),
    policyId,
    ifindex: 1,
    routed: random.once(2),
    gateway: random.once(4) ? null : GATEWAY4,
    guestAddress: random.once(4) ? null : GUEST4,
    epoch: random.between(1, 0xffff_fffe),
    buckets: random.of([0, 1, 2, 64, 512]),
    phase: randomPhase(random),
    mark: random.of([0, 0x1000_0000]),
  };
}
