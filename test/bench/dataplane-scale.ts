// What many sandboxes cost: to attach one of a thousand, memory of the maps, and how long it takes until another policy is
// in force, beside the agent's dataplane on nftables.
import { randomUUID } from "node:crypto";
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { BpfMap } from "../../ffi/libbpf/maps.ts";
import { networkWith, policyWith } from "../../plugins/host/ebpf/testing/fixtures.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { type Connected, DataplaneUnderTest } from "../harness/dataplane.ts";
import { POLICY } from "./dataplane-wire.ts";
import { growth, judged, type Row, timed } from "./measure.ts";
import { Namespace } from "./namespace.ts";

const SANDBOXES = 1000;
/** One process a table: slow, so fewer. */
const TABLES = 20;
const UPDATES = 300;
/** A link waits for every packet in the kernel to come to its end, under the network's lock: twice a sandbox. */
const ATTACH_BUDGET_MS = 50;
const MIB = 1024 * 1024;
/** A set of maps for each sandbox, as it was when it was tried. */
const OWN_SET_MIB = 11.7;

const OTHER_POLICY: EffectivePolicy = policyWith({
  ...POLICY,
  allowCidrs: POLICY.allowCidrs.slice(1),
  fingerprint: "b",
});

export async function benchScale({ smoke }: { readonly smoke: boolean }): Promise<Row[]> {
  const count = smoke ? 20 : SANDBOXES;
  await using host = await Namespace.make("host");
  const sandboxes = await connected(host, count);
  await using legacy = await DataplaneUnderTest.start(host, { plugin: "legacy" });
  const tables = sandboxes.slice(0, smoke ? 2 : TABLES);
  const tableMs = (await timed(() => attachAll(legacy, tables))) / tables.length;
  const tableUpdates = await updates(legacy, tables, smoke ? 2 : UPDATES / 3);
  for (const sandbox of tables) await legacy.detach(sandbox);

  await using ebpf = await DataplaneUnderTest.start(host, { plugin: "ebpf" });
  const [first, ...others] = sandboxes;
  if (first === undefined) throw new Error("no interfaces");
  await attachAll(ebpf, [first]);
  const oneMib = await mapsMib(ebpf.pinRoot);
  const attachMs = (await timed(() => attachAll(ebpf, others))) / others.length;
  const allMib = await mapsMib(ebpf.pinRoot);
  const updateMs = await updates(ebpf, sandboxes, smoke ? 2 : UPDATES);
  return [
    {
      ...judged(
        {
          metric: `another policy in force, ${count} sandboxes`,
          peerName: "nftables",
          unit: "ms",
          budget: 2,
          budgetKind: "absolute",
        },
        updateMs,
        updateMs.map((_, index) => tableUpdates[index % tableUpdates.length] ?? Number.NaN),
      ),
    },
    once({
      metric: `attach one of ${count}`,
      ours: attachMs,
      peer: tableMs,
      unit: "ms",
      peer_name: "nftables",
      budget: ATTACH_BUDGET_MS,
    }),
    once({
      metric: "maps of a host with one sandbox",
      ours: oneMib,
      peer: OWN_SET_MIB,
      unit: "MiB",
      peer_name: "a set of its own",
      budget: 64,
    }),
    growth({
      metric: `maps of ${count} sandboxes with ten ranges and two ports each`,
      ours: allMib,
      peer: oneMib,
      unit: "MiB",
      peer_name: "one",
      budget: 64,
    }),
  ];
}

/** Judged by its own value; the peer says what that means. */
function once(measured: Omit<Row, "ratio" | "ratio_upper" | "budget_kind" | "met" | "pairs">): Row {
  const { ours, budget } = measured;
  return { ...measured, ratio: ours, ratio_upper: ours, budget_kind: "absolute", met: ours <= budget, pairs: 1 };
}

/** Both ends of each pair of interfaces are a sandbox's. */
async function connected(host: Namespace, count: number): Promise<Connected[]> {
  const shortNames = Array.from(
    { length: count },
    (_, index) => `bench${"aaaaaaa".slice(String(index).length)}${letters(index)}`,
  );
  const lines = shortNames.flatMap((name, index) => {
    const other = shortNames[index + 1];
    return index % 2 === 0 && other !== undefined ? [`link add vh${name} type veth peer name vh${other}`] : [];
  });
  await host.run(["ip", "-batch", "-"], `${lines.join("\n")}\n`);
  const shown = JSON.parse(await host.run(["ip", "-j", "link", "show"])) as { ifname: string; ifindex: number }[];
  const indices = new Map(shown.map(({ ifname, ifindex }) => [ifname, ifindex]));
  return shortNames.map((shortName) => {
    const hostInterface = `vh${shortName}`;
    const network = networkWith({ hostInterface, hostInterfaceIndex: indices.get(hostInterface) ?? 0 });
    return { sandboxId: randomUUID(), shortName, network };
  });
}

/** The number in letters, as names of interfaces have them. */
function letters(number: number): string {
  return [...String(number)].map((digit) => "abcdefghij"[Number(digit)]).join("");
}

async function attachAll(dataplane: DataplaneUnderTest, sandboxes: readonly Connected[]): Promise<void> {
  await dataplane.attachAll(
    sandboxes.map(({ sandboxId, shortName, network }, index) => {
      return { sandboxId, shortName, network, policy: { ...POLICY, identity: POLICY.identity + index } };
    }),
  );
}

/** Milliseconds of each, one sandbox after the other. */
async function updates(
  dataplane: DataplaneUnderTest,
  sandboxes: readonly Connected[],
  count: number,
): Promise<number[]> {
  const sandbox = sandboxes[Math.floor(sandboxes.length / 2)];
  if (sandbox === undefined) throw new Error("no sandbox");
  return dataplane.toggle(sandbox, [OTHER_POLICY, POLICY], count);
}

async function mapsMib(pinRoot: string): Promise<number> {
  const directory = join(pinRoot, "maps");
  let bytes = 0;
  for (const name of await readdir(directory)) {
    await using map = await BpfMap.openPinned(join(directory, name));
    bytes += await map.memoryBytes();
  }
  return bytes / MIB;
}
