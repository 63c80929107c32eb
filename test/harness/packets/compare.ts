// One story of random packets under random policies, told to the programs in the kernel and to the model; they must agree on
// each verdict and mark, on the totals after each packet, and at the end on everything that was written down.
import {
  decodeConnectionBucket,
  decodeConnectionBucketKey,
  decodeFlowCounters,
  decodeFlowEvent,
  decodeLearnedAddress,
  decodeLimiter,
  CONNECTION_BYTES,
  CONNECTION_FLAGS,
  LEARNED_FROM,
  MIGRATION_PHASES,
  SLOTS,
} from "../../../ffi/layout/bpf.ts";
import { RingBuffer } from "../../../ffi/libbpf/ring.ts";
import { wordKey } from "../../../plugins/host/ebpf/kernel-map.ts";
import type { Rule } from "../../../plugins/host/ebpf/rules.ts";
import type { SandboxNetwork } from "../../../src/contracts/network.ts";
import { Model, type Counters, type Situation } from "./model.ts";
import { type RandomFrame, randomFrame } from "./packets.ts";
import { randomPhase, randomPolicy, randomSituation } from "./policies.ts";
import type { TrafficPrograms } from "./programs.ts";
import { Random } from "./random.ts";

export const PACKETS_IN_STORY = 400;

const NEXT = 0xffff_ffff;
const DROP = 2;
const EVENTS_WAIT_MS = 2000;
/** Steps of time between packets. */
const STEPS_NS = [0n, 0n, 1000n, 1_000_000n, 20_000_000n, 300_000_000n, 1_000_000_000n];
const LONG_STEPS_NS = [29_000_000_000n, 31_000_000_000n, 119_000_000_000n, 121_000_000_000n, 7_201_000_000_000n];

export class Comparison {
  readonly #events: Uint8Array[] = [];
  #ring: { close(): void } | null = null;
  #policyId = 1;
  /** Rules of the last story stay for the next one: they are another policy's. */
  #stale: Rule[] = [];

  private constructor(private readonly programs: TrafficPrograms) {}

  static async open(programs: TrafficPrograms): Promise<Comparison> {
    const comparison = new Comparison(programs);
    comparison.#ring = await RingBuffer.open(programs.map("fluxvm_events"), (record) => {
      comparison.#events.push(record);
    });
    return comparison;
  }

  close(): void {
    this.#ring?.close();
  }

  /** Null: they agree. Else what they differ in, and where. */
  async story(seed: number): Promise<string | null> {
    const difference = await this.#tell(seed, false);
    if (difference === null) return null;
    return `story ${seed}: ${(await this.#tell(seed, true)) ?? `${difference} (not in a second telling)`}`;
  }

  async #tell(seed: number, thorough: boolean): Promise<string | null> {
    const random = new Random(seed);
    const slot = random.below(SLOTS);
    this.#clear(slot);
    const world = random.once(2) ? "narrow" : "wide";
    const model = new Model();
    const rules: Rule[] = [];
    let situation = randomSituation(random, this.#policyId++);
    rules.push(...this.#apply(situation, slot));
    let now = 1_000_000_000_000n + BigInt(random.below(1000));
    for (let index = 0; index < PACKETS_IN_STORY; index++) {
      if (index > 0) {
        const changed = this.#changed(random, situation);
        if (changed !== situation) rules.push(...this.#apply(changed, slot));
        situation = changed;
        now += random.once(30) ? random.of(LONG_STEPS_NS) : random.of(STEPS_NS);
      }
      const packet = randomFrame(random, world);
      const difference =
        this.#one(packet, random.of([0, 0x0bad_0000]), now, situation, slot, model) ??
        (thorough ? await this.#state(slot, model) : null);
      if (difference !== null) return `packet ${index}: ${difference}\n${described(packet, now, situation)}`;
    }
    const difference = await this.#state(slot, model);
    this.#remove(this.#stale);
    this.#stale = rules;
    return difference;
  }

  #one(
    packet: RandomFrame,
    mark: number,
    now: bigint,
    situation: Situation,
    slot: number,
    model: Model,
  ): string | null {
    const { frame, sent, segments, segmentBytes } = packet;
    this.programs.setClock(now);
    const program = this.programs.object.program(sent ? "fluxvm_egress" : "fluxvm_ingress");
    const run = program.testRun(frame, { context: { mark, segments, segmentBytes } });
    let passes = true;
    if (sent) passes = model.send(frame, packet, now, situation);
    else model.receive(frame, packet, now, situation);
    const left = { verdict: run.verdict, mark: run.context?.mark };
    const right = { verdict: passes ? NEXT : DROP, mark: (passes && sent ? mark | situation.mark : mark) >>> 0 };
    return different("outcome", left, right) ?? different("totals", this.programs.totals(slot), model.totals);
  }

  /** Everything that was written down. */
  async #state(slot: number, model: Model): Promise<string | null> {
    const limiter = decodeLimiter(this.programs.map("fluxvm_rate").get(wordKey(slot)) ?? new Uint8Array(0));
    const { address, origin, lastSeenNs } = decodeLearnedAddress(
      this.programs.map("fluxvm_learned").get(wordKey(slot)) ?? new Uint8Array(0),
    );
    const from = LEARNED_FROM[origin];
    const learned = from === "none" ? null : { address: latin1(address), origin: from, lastSeenNs };
    const budgets = model.budgets();
    return (
      different("flows", this.#counters("fluxvm_flows"), sorted(model.flows)) ??
      different("drops", this.#counters("fluxvm_drops"), sorted(model.drops)) ??
      different("connections", this.#connections(slot), connectionsOf(model)) ??
      different("learned", learned, model.learned) ??
      different(
        "budgets",
        [limiter.bytesUntilNs, limiter.packetsUntilNs, limiter.controlUntilNs],
        [budgets.bytes, budgets.packets, budgets.control],
      ) ??
      different("events", await this.#read(model.events.length), model.events)
    );
  }

  #counters(name: string): [string, Counters][] {
    const counters = new Map<string, Counters>();
    for (const { key, value } of this.programs.map(name).entries()) {
      const { packets, bytes, lastSeenNs } = decodeFlowCounters(value);
      counters.set(latin1(key), { packets: Number(packets), bytes: Number(bytes), lastSeenNs });
    }
    return sorted(counters);
  }

  #connections(slot: number): unknown {
    const found: [number, unknown][] = [];
    for (const { key, value } of this.programs.map("fluxvm_ct").entries()) {
      const place = decodeConnectionBucketKey(key);
      if (place.slot !== slot) return `a bucket of slot ${place.slot}`;
      const ways = decodeConnectionBucket(value).connections.map((connection, index) => ({
        tuple: latin1(value.subarray(8 + index * CONNECTION_BYTES, 8 + index * CONNECTION_BYTES + 40)),
        protocol: connection.protocol,
        lastSeenNs: connection.lastSeenNs,
        policyId: connection.policyId,
        epoch: connection.epoch,
        reply: (connection.flags & CONNECTION_FLAGS.reply) !== 0,
        greeted: (connection.flags & CONNECTION_FLAGS.greeted) !== 0,
        packets: Number(connection.packets),
        bytes: Number(connection.bytes),
      }));
      found.push([place.bucket, ways]);
    }
    return found.toSorted(([a], [b]) => a - b);
  }

  async #read(expected: number): Promise<unknown> {
    const until = performance.now() + EVENTS_WAIT_MS;
    while (this.#events.length < expected && performance.now() < until) await Bun.sleep(1);
    return this.#events.map((record) => {
      const { reason, action, bytes } = decodeFlowEvent(record);
      const tuple = Buffer.alloc(40);
      tuple.set(record.subarray(16, 48), 0);
      tuple.set(record.subarray(52, 57), 32);
      tuple[37] = record[58] ?? 0;
      return { tuple: latin1(tuple), reason, action, bytes };
    });
  }

  #changed(random: Random, situation: Situation): Situation {
    if (random.once(25)) return { ...situation, policy: randomPolicy(random), policyId: this.#policyId++ };
    if (random.once(50)) return { ...situation, policyId: this.#policyId++ };
    if (random.once(40)) return { ...situation, phase: randomPhase(random) };
    if (random.once(100)) return { ...situation, epoch: random.between(1, 0xffff_fffe) };
    return situation;
  }

  #apply(situation: Situation, slot: number): Rule[] {
    return this.programs.enforce(situation.policy, situation.policyId, {
      network: networkOf(situation),
      slot,
      connectionEpoch: situation.epoch,
      connectionBuckets: situation.buckets,
      phase: MIGRATION_PHASES.indexOf(situation.phase),
      mark: situation.mark,
    });
  }

  #remove(rules: readonly Rule[]): void {
    for (const { map, key } of rules) this.programs.map(map).delete(key);
  }

  #clear(slot: number): void {
    this.programs.forget(slot);
    this.#events.length = 0;
  }
}

function networkOf(situation: Situation): SandboxNetwork {
  return {
    mode: "tap",
    hostInterface: "lo",
    hostInterfaceIndex: situation.ifindex,
    hook: situation.routed ? "routed" : "bridged",
    namespace: null,
    tap: null,
    mac: null,
    guestAddress: situation.guestAddress,
    innerAddress: null,
    gateway: situation.gateway,
    prefixLength: null,
    leaseFile: null,
  };
}

function connectionsOf(model: Model): unknown {
  return [...model.connections].toSorted(([a], [b]) => a - b);
}

function sorted(counters: ReadonlyMap<string, Counters>): [string, Counters][] {
  return [...counters].toSorted(([a], [b]) => (a < b ? -1 : 1));
}

function different(what: string, kernel: unknown, model: unknown): string | null {
  if (Bun.deepEquals(kernel, model)) return null;
  return `${what} differ\nkernel ${shown(kernel)}\nmodel  ${shown(model)}`;
}

function described(packet: RandomFrame, now: bigint, situation: Situation): string {
  const { frame, ...rest } = packet;
  return `${frame.toHex()} ${JSON.stringify(rest)} at ${now}\n${JSON.stringify(situation)}`;
}

function shown(value: unknown): string {
  return JSON.stringify(value, (_, part) =>
    typeof part === "bigint" ? `${part}n` : typeof part === "string" && /[^ -~]/.test(part) ? hex(part) : part,
  );
}

const hex = (text: string): string => Buffer.from(text, "latin1").toString("hex");
const latin1 = (bytes: Uint8Array): string => Buffer.from(bytes).toString("latin1");
