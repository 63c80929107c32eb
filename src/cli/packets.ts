// Rows about packets, for people: protocols by name, addresses with ports, one line a flow.
import type { Flow } from "../../sdk/typescript/types.ts";

const PROTOCOLS: Readonly<Record<number, string>> = { 1: "icmp", 6: "tcp", 17: "udp", 58: "icmp6", 132: "sctp" };
const WITH_PORTS = new Set([6, 17, 132]);

type Ends = Pick<Flow, "protocol" | "source" | "source_port" | "destination" | "destination_port">;

export const protocolName = (protocol: number): string => PROTOCOLS[protocol] ?? String(protocol);

/** Protocol, source and destination of a row, as cells. */
export function endsCells({ protocol, source, source_port, destination, destination_port }: Ends): string[] {
  const end = (address: string, port: number): string => {
    if (!WITH_PORTS.has(protocol)) return address;
    return address.includes(":") ? `[${address}]:${port}` : `${address}:${port}`;
  };
  return [protocolName(protocol), end(source, source_port), end(destination, destination_port)];
}
