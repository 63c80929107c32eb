// Ports as people write them: `tcp/443`, and `icmp/0` for a protocol that has none.
import type { AllowedPort, PortProtocol } from "../contracts/network-policy.ts";

const PROTOCOLS: Readonly<Record<string, PortProtocol>> = {
  tcp: "tcp",
  udp: "udp",
  sctp: "sctp",
  icmp: "icmp",
  icmp6: "icmp6",
  icmpv6: "icmp6",
};
const PORT = /^(?:0|[1-9]\d{0,4})$/;
const PORT_MAX = 65_535;

/** The port of a text in any case, or null. Only ICMP has, and must have, port 0. */
export function parsePort(text: string): AllowedPort | null {
  const slash = text.indexOf("/");
  const word = text.slice(0, Math.max(0, slash)).toLowerCase();
  const digits = text.slice(slash + 1);
  if (!Object.hasOwn(PROTOCOLS, word) || !PORT.test(digits) || Number(digits) > PORT_MAX) return null;
  const protocol = PROTOCOLS[word]!;
  const port = Number(digits);
  const isIcmp = protocol === "icmp" || protocol === "icmp6";
  return isIcmp === (port === 0) ? { protocol, port } : null;
}

export const formatPort = ({ protocol, port }: AllowedPort): string => `${protocol}/${port}`;

/** By protocol, then port; each once. */
export function uniquePorts(ports: readonly AllowedPort[]): readonly AllowedPort[] {
  const byText = new Map(ports.map((port) => [formatPort(port), port]));
  return [...byText.values()].sort((a, b) =>
    a.protocol === b.protocol ? a.port - b.port : a.protocol < b.protocol ? -1 : 1,
  );
}
