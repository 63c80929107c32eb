// One guest before the programs of `native/bpf`: the policy that is in force for it, the frames that it sends and gets, and
// what becomes of them.
import { afterAll, beforeAll, beforeEach, expect } from "bun:test";
import { DROP_REASONS, decodeDropKey, decodeFlowCounters } from "../../../ffi/layout/bpf.ts";
import { networkWith, policyWith } from "../../../plugins/host/ebpf/testing/fixtures.ts";
import type { EffectivePolicy } from "../../../src/contracts/network-policy.ts";
import type { SandboxNetwork } from "../../../src/contracts/network.ts";
import { ETHERTYPE, ethernet, icmp, type Internet, internet, PROTOCOL, TCP, tcp, udp } from "../frames.ts";
import { GATEWAY4, GUEST4, GUEST6, GUEST_MAC } from "./policies.ts";
import { TrafficPrograms } from "./programs.ts";

export const HOST_MAC = "02:fc:00:00:00:01";
export const SLOT = 9;
export const SECOND = 1_000_000_000n;

/** The loopback, which is where test runs are. */
const INTERFACE = 1;
const MARK = 0x1000_0000;
const DROP = 2;
/** Of a program that leaves the decision to whoever comes next. */
const NEXT = 0xffff_ffff;

/** What a policy is in force for, where that is not a routed guest that runs. */
export interface Place {
  readonly network?: Partial<SandboxNetwork>;
  readonly epoch?: number;
  readonly phase?: number;
  readonly buckets?: number;
}

export class Judge {
  #programs: TrafficPrograms | null = null;
  #policyId = 0;
  #now = 0n;

  private constructor() {}

  /** For all tests of the file in which this is called; each of them begins with nothing seen. */
  static ofFile(): Judge {
    const judge = new Judge();
    beforeAll(async () => {
      judge.#programs = await TrafficPrograms.load();
    });
    beforeEach(() => {
      judge.programs.forget(SLOT);
      judge.#now = 1000n * SECOND;
      judge.programs.setClock(judge.#now);
    });
    afterAll(() => judge.#programs?.[Symbol.asyncDispose]());
    return judge;
  }

  get programs(): TrafficPrograms {
    if (this.#programs === null) throw new Error("the programs are there only while tests run");
    return this.#programs;
  }

  /** From now on in force, under a number of its own. */
  readonly enforce = (
    changes: Partial<EffectivePolicy>,
    { network = {}, epoch = 77, phase = 0, buckets = 64 }: Place = {},
  ): void => {
    this.programs.enforce(policyWith(changes), ++this.#policyId, {
      network: networkWith({ hostInterfaceIndex: INTERFACE, gateway: GATEWAY4, guestAddress: GUEST4, ...network }),
      slot: SLOT,
      connectionEpoch: epoch,
      connectionBuckets: buckets,
      phase,
      mark: MARK,
    });
  };

  /** Lets this many nanoseconds go by. */
  readonly wait = (ns: bigint): void => {
    this.#now += ns;
    this.programs.setClock(this.#now);
  };

  /** `allow`, `audit …` or the reason of the denial; `uncounted` where nobody tells of that. */
  readonly send = (frame: Uint8Array, segments = 0): string => {
    const before = this.denials();
    const egress = this.programs.object.program("fluxvm_egress");
    const { verdict, context } = egress.testRun(frame, { context: { mark: 1, segments } });
    const added = this.denials().find(
      ({ packets, name }) => packets !== (before.find((old) => old.name === name)?.packets ?? 0n),
    );
    const passes = verdict !== DROP;
    expect(context?.mark).toBe(passes ? MARK + 1 : 1);
    if (added === undefined) return passes ? "allow" : "uncounted";
    return passes ? `audit ${added.reason}` : added.reason;
  };

  /** A frame that comes to the guest, about which nothing is decided. */
  readonly receive = (frame: Uint8Array): void => {
    const run = this.programs.object.program("fluxvm_ingress").testRun(frame, { context: { mark: 1 } });
    expect(run).toMatchObject({ verdict: NEXT, context: { mark: 1 } });
  };

  denials() {
    return [...this.programs.map("fluxvm_drops").entries()].map(({ key, value }) => {
      const { reason } = decodeDropKey(key);
      return { name: key.toHex(), reason: DROP_REASONS[reason] ?? "?", packets: decodeFlowCounters(value).packets };
    });
  }
}

/** A packet of the guest's, with whatever addresses, as it leaves the guest. */
export function from(packet: Uint8Array, type: number): Uint8Array {
  return ethernet(HOST_MAC, GUEST_MAC, type, packet);
}

/** A packet of the guest's from its own address. */
export function sent(
  destination: string,
  protocol: number,
  body: Uint8Array,
  more: Partial<Internet> = {},
): Uint8Array {
  const isSix = destination.includes(":");
  const packet = internet({ source: isSix ? GUEST6 : GUEST4, destination, protocol, ...more }, body);
  return from(packet, isSix ? ETHERTYPE.ipv6 : ETHERTYPE.ipv4);
}

export const syn = (destination: string, port: number): Uint8Array =>
  sent(destination, PROTOCOL.tcp, tcp(1000, port, TCP.syn));
export const ack = (destination: string, port: number, payload: Uint8Array | string = ""): Uint8Array =>
  sent(destination, PROTOCOL.tcp, tcp(1000, port, TCP.ack, payload));
export const datagram = (destination: string, port: number, payload: Uint8Array | string = "x"): Uint8Array =>
  sent(destination, PROTOCOL.udp, udp(1000, port, payload));
export const echo = (destination: string): Uint8Array =>
  destination.includes(":") ? sent(destination, PROTOCOL.icmp6, icmp(128)) : sent(destination, PROTOCOL.icmp, icmp(8));
