// A policy as the nftables table of one sandbox. The table hears of every packet of the host but looks only at those that
// come in by its sandbox's interface: all others pass it untouched, also those of other sandboxes with tables of their own.
import { isIP } from "node:net";
import type { SandboxNetwork } from "../../src/contracts/network.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { ALLOWED_MARK, NFT_PRIORITY } from "../host/network-marks.ts";
import { type NftFamily, replaced } from "../host/nft.ts";

const METADATA = "169.254.169.254";
const NAME_PREFIX = "fluxvm_";
const NAME = /^fluxvm_([0-9a-f]{8})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{4})([0-9a-f]{12})$/;

/** The name of a sandbox's table. */
export function tableName(sandboxId: string): string {
  return `${NAME_PREFIX}${sandboxId.replaceAll("-", "")}`;
}

/** The sandbox that a table is of; null for a table that is none of ours. */
export function sandboxOfTable(name: string): string | null {
  const found = NAME.exec(name);
  return found === null ? null : found.slice(1).join("-");
}

/** Packets of a bridged guest are frames, and seen as such; those of a routed one are the host's to route. */
export function familyOf(network: SandboxNetwork): NftFamily {
  return network.hook === "bridged" ? "bridge" : "inet";
}

/** Said by the first rule of the table: whose it is, and what it enforces at which interface. */
export function commentOf(owner: string, network: SandboxNetwork, policy: EffectivePolicy): string {
  return `${owner} ${network.hostInterface} ${policy.fingerprint}`;
}

/**
 * Whether the policy asks for anything but a mark on every packet. A guest's own connections are judged by each packet, so
 * that another policy holds for those that are open; its answers are known by the connection.
 */
export function decides(policy: EffectivePolicy): boolean {
  return policy.enforceCidrs || policy.enforcePorts || !policy.defaultAllow;
}

/** Script that puts the table in place of the one before, in one step. */
export function tableScript(
  sandboxId: string,
  network: SandboxNetwork,
  policy: EffectivePolicy,
  comment: string,
): string {
  const rules = [
    ...(network.hook === "bridged" ? linkRules(network, policy) : sourceRules(policy)),
    ...gatewayRules(network),
    ...(decides(policy) ? ["ct direction reply ct state established,related goto allowed"] : []),
    ...destinationRules(policy),
    ...portRules(policy),
  ];
  const mark = `0x${ALLOWED_MARK.toString(16)}`;
  return replaced(
    familyOf(network),
    tableName(sandboxId),
    `
  chain allowed {
    meta mark set meta mark | ${mark} accept
  }
  chain guest {
    ${rules.join("\n    ")}
  }
  chain decide {
    type filter hook prerouting priority ${NFT_PRIORITY.decide}; policy accept;
    iifname "${network.hostInterface}" jump guest comment "${comment}"
  }`,
  );
}

/** Everything that a guest on a bridge says to get and keep an address, and nothing else that is not IP. */
function linkRules({ gateway }: SandboxNetwork, policy: EffectivePolicy): string[] {
  const { mac } = policy.source;
  const spoof = policy.source.antiSpoof && mac !== null ? [`ether saddr != ${mac} drop`] : [];
  const servers = ["255.255.255.255", ...(gateway === null ? [] : [gateway])].join(", ");
  return [
    ...spoof,
    "ether type arp goto allowed",
    `ip daddr { ${servers} } udp sport 68 udp dport 67 goto allowed`,
    "ip6 daddr ff02::1:2 udp sport 546 udp dport 547 goto allowed",
    ...neighbourRules,
    ...(decides(policy) ? ["ether type != { ip, ip6 } drop"] : []),
    ...sourceRules(policy),
  ];
}

const neighbourRules = [
  "icmpv6 type { nd-router-solicit, nd-neighbor-solicit, nd-neighbor-advert } ip6 hoplimit 255 goto allowed",
];

function sourceRules({ source }: EffectivePolicy): string[] {
  if (!source.antiSpoof) return [];
  return [
    ...(source.ipv4 === null ? [] : [`ip saddr != ${source.ipv4} drop`]),
    ...(source.ipv6 === null ? [] : [`ip6 saddr != { ${source.ipv6}, fe80::/10 } drop`]),
  ];
}

/** Names are resolved by the host, whatever else is allowed. */
function gatewayRules({ gateway }: SandboxNetwork): string[] {
  return gateway === null ? [] : [`ip daddr ${gateway} meta l4proto { tcp, udp } th dport 53 goto allowed`];
}

function destinationRules({ allowCidrs, enforceCidrs }: EffectivePolicy): string[] {
  const metadata = allowCidrs.includes(`${METADATA}/32`) ? [] : [`ip daddr ${METADATA} drop`];
  if (!enforceCidrs) return metadata;
  const miss = (family: 4 | 6): string => {
    const ip = family === 4 ? "ip" : "ip6";
    const ranges = allowCidrs.filter((cidr) => isIP(cidr.split("/")[0] ?? "") === family);
    return ranges.length === 0 ? `meta protocol ${ip} drop` : `${ip} daddr != { ${ranges.join(", ")} } drop`;
  };
  return [...metadata, miss(4), miss(6)];
}

/** Ends with what happens to all the rest. */
function portRules({ allowPorts, defaultAllow, enforceCidrs, enforcePorts }: EffectivePolicy): string[] {
  if (!enforcePorts) return [enforceCidrs || defaultAllow ? "goto allowed" : "drop"];
  const rules = (["tcp", "udp"] as const).flatMap((protocol) => {
    const ports = allowPorts.filter((allowed) => allowed.protocol === protocol).map(({ port }) => port);
    return ports.length === 0 ? [] : [`${protocol} dport { ${ports.join(", ")} } goto allowed`];
  });
  return [...rules, "drop"];
}
