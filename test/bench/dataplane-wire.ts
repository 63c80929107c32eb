// What the dataplane costs on the way: round trips and a stream over a pair of interfaces between two namespaces, beside the
// same with nothing attached and with nftables, which the agent's `legacy` dataplane gives the same policy.
import { randomUUID } from "node:crypto";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { Subprocess } from "bun";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { type Connected, DataplaneUnderTest } from "../harness/dataplane.ts";
import { outputOf } from "../harness/program.ts";
import { judged, type Row, run } from "./measure.ts";
import { Namespace } from "./namespace.ts";
import { networkWith, policyWith } from "../../plugins/host/ebpf/testing/fixtures.ts";

const PORT = 7;
const HOST = "169.254.0.17";
const GUEST = "169.254.0.19";
const SHORT_NAME = "benchaaaaaaa";
const INTERFACE = `vh${SHORT_NAME}`;

/** Ten ranges, and both protocols of one port. */
export const POLICY: EffectivePolicy = policyWith({
  enforceCidrs: true,
  enforcePorts: true,
  allowCidrs: [...Array.from({ length: 9 }, (_, index) => `10.${index}.0.0/16`), "169.254.0.16/28"],
  allowPorts: [
    { protocol: "tcp", port: PORT },
    { protocol: "udp", port: PORT },
  ],
});

const WAYS = ["ebpf", "legacy", "nothing"] as const;
type Way = (typeof WAYS)[number];
type Samples = Readonly<Record<Way, number[]>>;

export async function benchWire({ smoke }: { readonly smoke: boolean }): Promise<Row[]> {
  const folder = await mkdtemp(join(tmpdir(), "fluxvm-bench-veth-"));
  await using host = await Namespace.make("host");
  await using guest = await Namespace.make("guest");
  try {
    const program = join(folder, "veth");
    await run(["cc", "-O2", "-o", program, join(import.meta.dir, "veth.c")], folder);
    const network = networkWith({ hostInterface: INTERFACE, hostInterfaceIndex: await joinedUp(host, guest) });
    const sandbox: Connected = { sandboxId: randomUUID(), shortName: SHORT_NAME, network };
    await using ebpf = await DataplaneUnderTest.start(host, { plugin: "ebpf" });
    await using legacy = await DataplaneUnderTest.start(host, { plugin: "legacy" });
    await using _ = await serving(host.command([program, "serve", String(PORT)]));
    const client = async (what: "round-trips" | "stream", amount: number): Promise<number> =>
      Number(await outputOf(guest.command([program, what, HOST, String(PORT), String(amount)])));

    const [trips, streams] = [samples(), samples()];
    const [pairs, mib] = smoke ? [1, 4] : [60, 256];
    for (let pair = -1; pair < pairs; pair++) {
      for (const way of WAYS) {
        const dataplane = { ebpf, legacy, nothing: null }[way];
        await dataplane?.attach(sandbox, POLICY);
        const trip = await client("round-trips", smoke ? 100 : 3000);
        const stream = await client("stream", mib);
        if (way === "ebpf" && (await ebpf.stats(sandbox)).allowedPackets === 0n) throw new Error("nothing was decided");
        await dataplane?.detach(sandbox);
        if (pair < 0) continue;
        trips[way].push(trip);
        streams[way].push(stream);
      }
    }
    return rowsOf(trips, streams, mib);
  } finally {
    await rm(folder, { recursive: true });
  }
}

function rowsOf(trips: Samples, streams: Samples, mib: number): Row[] {
  const beside = (measured: Parameters<typeof judged>[0], samples: Samples, peer: Way): Row =>
    judged(measured, samples.ebpf, samples[peer]);
  const trip = { metric: "round trip of a datagram, ten ranges and a port", unit: "µs" };
  const stream = { metric: `${mib} MiB by TCP, ten ranges and a port`, unit: "ms", budget: 1.05 };
  return [
    beside({ ...trip, peerName: "nothing attached", budget: 2, budgetKind: "difference" }, trips, "nothing"),
    beside({ ...trip, peerName: "nftables, same policy", budget: 1.05 }, trips, "legacy"),
    beside({ ...stream, peerName: "nothing attached" }, streams, "nothing"),
    beside({ ...stream, peerName: "nftables, same policy" }, streams, "legacy"),
  ];
}

function samples(): Samples {
  return { ebpf: [], legacy: [], nothing: [] };
}

/** Number of the host's end. */
async function joinedUp(host: Namespace, guest: Namespace): Promise<number> {
  await run(
    ["ip", "link", "add", INTERFACE, "netns", host.name, "type", "veth", "peer", "eth0", "netns", guest.name],
    "/",
  );
  for (const [namespace, device, address] of [
    [host, INTERFACE, HOST],
    [guest, "eth0", GUEST],
  ] as const) {
    await namespace.run(["ip", "address", "add", `${address}/28`, "dev", device]);
    await namespace.run(["ip", "link", "set", device, "up"]);
  }
  return namespaceIndex(host, INTERFACE);
}

async function namespaceIndex(namespace: Namespace, device: string): Promise<number> {
  const shown = JSON.parse(await outputOf(["ip", "-n", namespace.name, "-j", "link", "show", device])) as unknown;
  const index = Array.isArray(shown) ? Number((shown[0] as { ifindex?: number }).ifindex) : Number.NaN;
  if (!Number.isInteger(index)) throw new Error(`${device} has no number`);
  return index;
}

async function serving(argv: readonly string[]): Promise<AsyncDisposable> {
  // Its own group: it has a child.
  const server: Subprocess<"ignore", "pipe", "inherit"> = Bun.spawn(["setsid", ...argv], { stdout: "pipe" });
  const { value } = await server.stdout.getReader().read();
  if (!new TextDecoder().decode(value).includes("ready")) throw new Error("the server did not start");
  return {
    async [Symbol.asyncDispose]() {
      process.kill(-server.pid, "SIGKILL");
      await server.exited;
    },
  };
}
