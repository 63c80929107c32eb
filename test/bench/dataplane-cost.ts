// What the decision about one packet costs, by test runs of the very programs, beside a program that decides nothing. The
// kernel times the runs, so what a packet costs otherwise is not in it.
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BPF_PROGRAMS, SLOTS } from "../../ffi/layout/bpf.ts";
import { BpfObject } from "../../ffi/libbpf/objects.ts";
import type { TestRun } from "../../ffi/libbpf/programs.ts";
import { interfaceElement, rulesOf } from "../../plugins/host/ebpf/rules.ts";
import { networkWith, policyWith } from "../../plugins/host/ebpf/testing/fixtures.ts";
import type { EffectivePolicy } from "../../src/contracts/network-policy.ts";
import { ethernet, ETHERTYPE, internet, joined, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { outputOf } from "../harness/program.ts";
import { compare, growth, type Row, run } from "./measure.ts";

const OBJECT = join(import.meta.dir, "../../dist/native/fluxvm_tc.bpf.o");
/** As `./run build` compiles the programs of the host, which are in it. */
const NEW_FLOWS = join(import.meta.dir, "new-flows.bpf.c");
const FLAGS = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-fno-strict-aliasing"];
/** The loopback, which is where test runs are. */
const INTERFACE = 1;
const NEXT = 0xffff_ffff;
const DROP = 2;
/** As sandboxes have; of eight connections each. */
const CONNECTION_BUCKETS = 512;
const RUNS = 10_000;
/** Begun with empty buckets, hardly one of them becomes full. */
const FLOWS = 2000;
/** First packets touch memory that nobody had in a cache: the least disturbed of so many rounds counts, on both sides. */
const ROUNDS = 5;

/** Programs with maps of their own, and policies in force one after the other. */
class Judge {
  #policyId = 0;

  constructor(private readonly object: BpfObject) {}

  /** From now on, in force for an interface that has seen nothing. */
  enforce(changes: Partial<EffectivePolicy>): void {
    const policy = policyWith(changes);
    const policyId = ++this.#policyId;
    for (const { map, key, value } of rulesOf(policy, policyId)) this.object.map(map).set(key, value);
    const element = interfaceElement(policy, policyId, {
      network: networkWith({ hostInterfaceIndex: INTERFACE }),
      slot: policyId % SLOTS,
      connectionEpoch: policyId,
      connectionBuckets: CONNECTION_BUCKETS,
      phase: 0,
      mark: 0x1000_0000,
    });
    this.object.map("fluxvm_iface").set(new Uint8Array(Uint32Array.of(INTERFACE).buffer), element);
  }

  /** No connection is known any more, and there is room for each in memory that is there. */
  forget(): void {
    const connections = this.object.map("fluxvm_ct");
    const keys = [...connections.entries()].map(({ key }) => key);
    connections.setAll(joined(...keys), new Uint8Array(keys.length * connections.facts.elementBytes));
  }

  async connectionsKib(): Promise<number> {
    return (await this.object.map("fluxvm_ct").memoryBytes()) / 1024;
  }

  run(program: string, packet: Uint8Array, repeat: number, expected: number): TestRun {
    const run = this.object.program(program).testRun(packet, { repeat });
    if (run.verdict !== expected) throw new Error(`${program} returned ${run.verdict}, not ${expected}`);
    return run;
  }
}

export async function benchDecisions({ smoke }: { readonly smoke: boolean }): Promise<Row[]> {
  const directory = await mkdtemp(join(tmpdir(), "fluxvm-bench-bpf-"));
  try {
    const output = join(directory, "new-flows.bpf.o");
    const headers = `/usr/include/${(await outputOf(["cc", "-print-multiarch"])).trim()}`;
    await run(["clang", ...FLAGS, `-I${headers}`, "-c", NEW_FLOWS, "-o", output], directory);
    await using object = await BpfObject.load(await bytesOf(OBJECT), { name: "fluxvm_tc" });
    await using newFlows = await BpfObject.load(await bytesOf(output), { name: "new-flows" });
    const pairs = smoke ? 2 : 60;
    const judge = new Judge(newFlows);
    return [...(await decisions(new Judge(object), judge, pairs)), ...(await firstPackets(judge, pairs))];
  } finally {
    await rm(directory, { recursive: true });
  }
}

async function bytesOf(path: string): Promise<Uint8Array> {
  return new Uint8Array(await Bun.file(path).arrayBuffer());
}

interface Case {
  readonly metric: string;
  /** Nanoseconds above a program that decides nothing. */
  readonly budget: number;
  readonly policy: Partial<EffectivePolicy>;
  readonly packet: Uint8Array;
  readonly verdict: number;
}

async function decisions(judge: Judge, other: Judge, pairs: number): Promise<Row[]> {
  const rows: Row[] = [];
  for (const { policy, packet, verdict, ...row } of CASES) {
    judge.enforce(policy);
    rows.push(
      await compare({
        ...AGAINST_NOTHING,
        ...row,
        pairs,
        ours: async () => judge.run(BPF_PROGRAMS.egress, packet, RUNS, verdict).durationNs,
        peer: async () => other.run("nothing", packet, RUNS, NEXT).durationNs,
      }),
    );
  }
  return rows;
}

/** Each run is a packet of another flow: `new-flows.bpf.c`. */
async function firstPackets(judge: Judge, pairs: number): Promise<Row[]> {
  const packet = datagram(5000, 443, "10.1.2.3");
  const decided = (from: Uint8Array, flows: number): TestRun => judge.run("new_flow_decided", from, flows, NEXT);
  const peer = (flows: number) => least(() => judge.run("new_flow_passed", packet, flows, NEXT).durationNs);
  judge.enforce(TEN_RANGES);
  const emptyKib = await judge.connectionsKib();
  let last = decided(packet, RUNS).packet;
  const memory = growth({
    metric: `connections of one sandbox, all ${8 * CONNECTION_BUCKETS} that it can have`,
    ours: await judge.connectionsKib(),
    peer: emptyKib,
    unit: "KiB",
    peer_name: "none",
    budget: 512,
  });
  const crowded = await compare({
    ...AGAINST_NOTHING,
    metric: "first packet of a flow that takes another's place",
    budget: 1000,
    pairs,
    ours: least(() => {
      const run = decided(last, RUNS);
      last = run.packet;
      return run.durationNs;
    }),
    peer: peer(RUNS),
  });
  const room = await compare({
    ...AGAINST_NOTHING,
    metric: "first packet of a flow, ten ranges and a port",
    budget: 400,
    pairs,
    ours: least(() => {
      judge.forget();
      return decided(packet, FLOWS).durationNs;
    }),
    peer: peer(FLOWS),
  });
  return [room, crowded, memory];
}

function least(measure: () => number): () => Promise<number> {
  return async () => Math.min(...Array.from({ length: ROUNDS }, measure));
}

const AGAINST_NOTHING = { peerName: "an empty program", unit: "ns", budgetKind: "difference" } as const;

const TEN_RANGES: Partial<EffectivePolicy> = {
  enforceCidrs: true,
  enforcePorts: true,
  allowCidrs: Array.from({ length: 10 }, (_, index) => `10.${index}.0.0/16`),
  allowPorts: [
    { protocol: "tcp", port: 443 },
    { protocol: "udp", port: 443 },
  ],
};

const THOUSAND_RANGES: Partial<EffectivePolicy> = {
  enforceCidrs: true,
  allowCidrs: Array.from({ length: 1000 }, (_, index) => `10.${index >> 8}.${index & 0xff}.0/24`),
};

/** A new connection is judged whatever was learned, so its packet can be run again and again. */
const judgedAgain = (destination: string): Uint8Array => segment(destination, TCP.syn);

const CASES: readonly Case[] = [
  {
    metric: "packet of a known connection",
    budget: 120,
    policy: TEN_RANGES,
    packet: datagram(5000, 443, "10.1.2.3"),
    verdict: NEXT,
  },
  {
    metric: "allowed by policy, nothing enforced",
    budget: 400,
    policy: { defaultAllow: true },
    packet: judgedAgain("10.1.2.3"),
    verdict: NEXT,
  },
  {
    metric: "allowed by ten ranges and a port",
    budget: 400,
    policy: TEN_RANGES,
    packet: judgedAgain("10.1.2.3"),
    verdict: NEXT,
  },
  {
    metric: "allowed by one of 1,000 ranges",
    budget: 400,
    policy: THOUSAND_RANGES,
    packet: judgedAgain("10.3.200.7"),
    verdict: NEXT,
  },
  {
    metric: "denied by 1,000 ranges",
    budget: 400,
    policy: THOUSAND_RANGES,
    packet: judgedAgain("10.200.0.1"),
    verdict: DROP,
  },
  {
    metric: "denied by default",
    budget: 400,
    policy: {},
    packet: judgedAgain("10.1.2.3"),
    verdict: DROP,
  },
];

function datagram(sourcePort: number, destinationPort: number, destination: string): Uint8Array {
  return framed(destination, PROTOCOL.udp, udp(sourcePort, destinationPort, "x".repeat(64)));
}

function segment(destination: string, flags: number): Uint8Array {
  return framed(destination, PROTOCOL.tcp, tcp(5000, 443, flags));
}

function framed(destination: string, protocol: number, payload: Uint8Array): Uint8Array {
  const packet = internet({ source: "169.254.0.19", destination, protocol }, payload);
  return ethernet("02:00:00:00:00:01", "02:00:00:00:00:02", ETHERTYPE.ipv4, packet);
}
