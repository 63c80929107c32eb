// What lies beyond a KVM host: namespaces of it that stand for the world that its guests reach, and for a network that they
// are stations of.
import { until } from "../../harness/machine-station.ts";
import type { KvmHost } from "../host/machine.ts";
import { succeed } from "./agent.ts";

/** An IPv4 address of the host, and the one beyond it. */
export interface Link {
  readonly host: string;
  readonly world: string;
}

const SEEN = `table inet seen {
  set ipv4 { type ipv4_addr . inet_service; flags dynamic; size 1024; }
  set ipv6 { type ipv6_addr . inet_service; flags dynamic; size 1024; }
  chain arriving {
    type filter hook input priority 0;
    tcp flags & (syn | ack) == syn update @ipv4 { ip daddr . tcp dport }
    tcp flags & (syn | ack) == syn update @ipv6 { ip6 daddr . tcp dport }
  }
}
`;

/** Makes a world that answers at the far end of each link, and whose server for names the host has. */
export async function makeWorld(host: KvmHost, links: readonly [Link, ...Link[]]): Promise<void> {
  const addresses = links.flatMap(({ host: near, world }) => [
    `address add ${near}/24 dev to-world`,
    `-n world address add ${world}/24 dev to-host`,
  ]);
  await ip(host, [
    "netns add world",
    "link add to-world type veth peer name to-host netns world",
    ...addresses,
    "link set to-world up",
    "-n world link set to-host up",
    "-n world link set lo up",
  ]);
  const worlds = links.map(({ world }) => world);
  await host.write("/etc/resolv.conf", Buffer.from(`nameserver ${worlds[0]}\n`), 0o644);
  await see(host, "world");
  await answers(host, "world", worlds);
}

/** The host's side of a network that it is plugged into: a link for macvtaps, and a bridge for tap devices. */
export const LAN = { link: "plug", bridge: "lan0" } as const;
/** Addresses on it: two that answer of either family, and those that a guest may have. */
export const STATIONS = { ipv4: ["192.0.2.1", "192.0.2.2"], ipv6: ["2001:db8::1", "2001:db8::2"] } as const;
export const GUEST = { ipv4: "192.0.2.5", ipv6: "2001:db8::5" } as const;

/** Makes the network, with a switch and its stations in a namespace. */
export async function makeLan(host: KvmHost): Promise<void> {
  await ip(host, [
    "netns add lan",
    "-n lan link add switch type bridge",
    `link add ${LAN.link} type veth peer name port0 netns lan`,
    "link add uplink type veth peer name port1 netns lan",
    `link add ${LAN.bridge} type bridge`,
    `link set uplink master ${LAN.bridge}`,
    "-n lan link set port0 master switch",
    "-n lan link set port1 master switch",
    ...STATIONS.ipv4.map((address) => `-n lan address add ${address}/24 dev switch`),
    ...STATIONS.ipv6.map((address) => `-n lan address add ${address}/64 dev switch nodad`),
    ...["lo", "port0", "port1", "switch"].map((link) => `-n lan link set ${link} up`),
    ...[LAN.link, "uplink", LAN.bridge].map((link) => `link set ${link} up`),
  ]);
  await see(host, "lan");
  await answers(host, "lan", [...STATIONS.ipv4, ...STATIONS.ipv6]);
}

/** To which addresses and ports somebody began a connection since this was asked last, as it arrived there. */
export async function arrivedIn(host: KvmHost, namespace: "lan" | "world"): Promise<readonly string[]> {
  const listed = await within(host, namespace, "nft", "list", "table", "inet", "seen");
  for (const set of ["ipv4", "ipv6"]) await within(host, namespace, "nft", "flush", "set", "inet", "seen", set);
  return [...listed.matchAll(/([0-9a-f.:]+) \. (\d+)/g)].map(([, address, port]) => `${address} ${port}`).sort();
}

async function see(host: KvmHost, namespace: string): Promise<void> {
  await host.write("/tmp/seen.nft", Buffer.from(SEEN), 0o600);
  await within(host, namespace, "nft", "-f", "/tmp/seen.nft");
}

async function within(host: KvmHost, namespace: string, ...argv: string[]): Promise<string> {
  return Buffer.from((await succeed(host, ["ip", "netns", "exec", namespace, ...argv])).output).toString();
}

async function ip(host: KvmHost, lines: readonly string[]): Promise<void> {
  for (const line of lines) await succeed(host, ["ip", ...line.split(" ")]);
}

async function answers(host: KvmHost, namespace: string, addresses: readonly string[]): Promise<void> {
  let listens = false;
  const job = host.start(["ip", "netns", "exec", namespace, "bun", "test/kvm/inside/world.ts", ...addresses], {
    output: (bytes) => {
      listens ||= Buffer.from(bytes).includes("listening");
    },
    errors: () => undefined,
  });
  job.endInput();
  await until(`${namespace} answers`, async () => listens);
}
