// Decisions that must be so, packet by packet, in words of the contract: each defect that such programs had elsewhere, and
// each rule that a guest would like to get around. `packets.test.ts` has the rest by chance.
import { describe, expect, test } from "bun:test";
import { decodeFlowKey, decodeInterfaceConfig, encodeInterfaceConfig, SLOTS } from "../../ffi/layout/bpf.ts";
import { wordKey } from "../../plugins/host/ebpf/kernel-map.ts";
import { ETHERTYPE, ethernet, icmp, internet, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import type { HammerOrder } from "../harness/packets/hammer.ts";
import { ack, datagram, echo, from, HOST_MAC, Judge, SECOND, sent, SLOT, syn } from "../harness/packets/judge.ts";
import { GATEWAY4, GUEST4, GUEST6, GUEST_MAC } from "../harness/packets/policies.ts";

const judge = Judge.ofFile();
const { enforce, wait, send, receive } = judge;
const FRIENDS = { enforceCidrs: true, allowCidrs: ["10.0.0.0/8", "fd00:2::/32"] } as const;
const WEB = { enforcePorts: true, allowPorts: [{ protocol: "tcp", port: 443 }] } as const;
const BOTH = ["10.1.2.3", "fd00:2::3"] as const;

describe("addresses and ports", () => {
  test("without an element for the interface nothing passes", () => {
    judge.programs.map("fluxvm_iface").delete(wordKey(1));
    expect(send(echo("10.1.2.3"))).toBe("uncounted");
  });

  test("one that is not whole, or another's, is none", () => {
    enforce({ defaultAllow: true });
    const interfaces = judge.programs.map("fluxvm_iface");
    const whole = decodeInterfaceConfig(interfaces.get(wordKey(1)) ?? new Uint8Array(0));
    expect(send(echo("10.1.2.3"))).toBe("allow");
    for (const wrong of [{ seal: whole.policyId - 1 }, { ifindex: 2 }, { slot: SLOTS }]) {
      interfaces.set(wordKey(1), encodeInterfaceConfig({ ...whole, ...wrong }));
      expect(send(echo("10.1.2.3"))).toBe("uncounted");
    }
  });

  test.each(BOTH)("%s: both lists must have it, and deny beats them", (destination) => {
    const other = destination.replace("10.1", "11.1").replace("fd00:2", "fd00:3");
    enforce({ ...FRIENDS, ...WEB, defaultAllow: true, denyCidrs: ["10.1.2.4/32", "fd00:2::4/128"] });
    expect(send(syn(destination, 443))).toBe("allow");
    expect(send(syn(destination, 80))).toBe("l4-miss");
    expect(send(syn(other, 443))).toBe("cidr-miss");
    expect(send(syn(destination.replace(/3$/, "4"), 443))).toBe("explicit-cidr-deny");
    enforce({ defaultAllow: false });
    expect(send(syn(destination, 443))).toBe("default-deny");
  });

  test("declared and empty is none, also where everything else is allowed", () => {
    enforce({ defaultAllow: true, enforceCidrs: true, allowCidrs: [] });
    expect(send(syn("10.1.2.3", 443))).toBe("cidr-miss");
  });

  test("icmp is a port like others", () => {
    enforce({ enforcePorts: true, allowPorts: [{ protocol: "icmp", port: 0 }] });
    expect(send(echo("10.1.2.3"))).toBe("allow");
    expect(send(echo("fd00:2::3"))).toBe("l4-miss");
  });

  test("frames that no rule can describe pass only where there is no rule", () => {
    const tagged = ethernet(HOST_MAC, GUEST_MAC, ETHERTYPE.vlan, new Uint8Array(60));
    enforce({ defaultAllow: true });
    expect(send(tagged)).toBe("allow");
    enforce({ ...FRIENDS, defaultAllow: true });
    expect(send(tagged)).toBe("unsupported-ethertype");
    enforce({ ...FRIENDS, audit: true });
    expect(send(tagged)).toBe("audit unsupported-ethertype");
  });

  test("fragments say no port", () => {
    const piece = sent("10.1.2.3", PROTOCOL.udp, udp(1000, 443), { fragment: { offset: 0, more: true } });
    enforce({ ...FRIENDS, ...WEB });
    expect(send(piece)).toBe("fragmented-l4");
    enforce({ ...FRIENDS, denyUdp: true });
    expect(send(piece)).toBe("udp-deny");
    enforce(FRIENDS);
    expect(send(piece)).toBe("allow");
  });

  test("the metadata address needs a rule for itself, audit or not", () => {
    for (const policy of [{ defaultAllow: true }, { ...FRIENDS, allowCidrs: ["0.0.0.0/0"] }, { audit: true }]) {
      enforce(policy);
      expect(send(syn("169.254.169.254", 80))).toBe("explicit-cidr-deny");
      expect(send(syn("fd00:ec2::254", 80))).toBe("explicit-cidr-deny");
    }
    enforce({ enforceCidrs: true, allowCidrs: ["169.254.169.254/32"] });
    expect(send(syn("169.254.169.254", 80))).toBe("allow");
    enforce({ enforceCidrs: true, allowCidrs: ["169.254.169.254/32"], denyCidrs: ["169.254.0.0/16"] });
    expect(send(syn("169.254.169.254", 80))).toBe("explicit-cidr-deny");
  });

  test("headers behind headers are walked, and a way around is not taken", () => {
    const options = [60, Uint8Array.of(0, 0, 0, 0, 0, 0, 0)] as const;
    const behind = (extensions: readonly (readonly [number, Uint8Array])[]): Uint8Array =>
      sent("fd00:2::3", PROTOCOL.tcp, tcp(1000, 443, TCP.syn), { extensions });
    enforce({ ...FRIENDS, ...WEB });
    expect(send(behind([options]))).toBe("allow");
    expect(send(behind(Array(6).fill(options)))).toBe("allow");
    expect(send(behind(Array(7).fill(options)))).toBe("malformed-l4");
    expect(send(behind([[43, Uint8Array.of(0, 0, 1, 0, 0, 0, 0)]]))).toBe("malformed-l4");
    expect(send(behind([[44, Uint8Array.of(0, 0, 1, 0, 0, 0, 1)], options]))).toBe("malformed-l4");
  });
});

test("a route that the sender chose is not taken", () => {
  const withOptions = (...options: readonly number[]): Uint8Array => {
    const plain = internet({ source: GUEST4, destination: "10.1.2.3", protocol: PROTOCOL.udp }, udp(1, 2));
    const packet = Uint8Array.of(...plain.subarray(0, 20), ...options, ...plain.subarray(20));
    packet[0] = 0x45 + options.length / 4;
    packet[3] = packet.length;
    return from(packet, ETHERTYPE.ipv4);
  };
  enforce(FRIENDS);
  expect(send(withOptions(148, 4, 0, 0))).toBe("allow");
  expect(send(withOptions(1, 1, 1, 0))).toBe("allow");
  for (const route of [131, 137]) {
    expect(send(withOptions(1, route, 7, 4, 10, 9, 9, 9))).toBe("malformed-l4");
  }
  expect(send(withOptions(148, 5, 0, 0))).toBe("malformed-l4");
  expect(send(withOptions(148, 1, 0, 0))).toBe("malformed-l4");
});

describe("connections", () => {
  test("a connection lives on, a new one on the same ports is judged", () => {
    enforce({ ...FRIENDS, ...WEB });
    expect(send(ack("10.1.2.3", 443))).toBe("allow");
    enforce({ defaultAllow: false });
    expect(send(ack("10.1.2.3", 443))).toBe("default-deny");
    enforce({ ...FRIENDS, ...WEB });
    expect(send(ack("10.1.2.3", 443))).toBe("allow");
    expect(send(syn("10.1.2.3", 22))).toBe("l4-miss");
  });

  test("a guest may answer what came from outside, whatever its port, and nothing else", () => {
    enforce({ defaultAllow: false });
    const came = (flags: number): Uint8Array =>
      ethernet(
        GUEST_MAC,
        HOST_MAC,
        0x0800,
        internet({ source: "10.1.2.3", destination: GUEST4, protocol: 6 }, tcp(5000, 22, flags)),
      );
    const answer = sent("10.1.2.3", PROTOCOL.tcp, tcp(22, 5000, TCP.syn | TCP.ack));
    receive(came(TCP.ack));
    expect(send(answer)).toBe("default-deny");
    receive(came(TCP.syn));
    expect(send(answer)).toBe("allow");
    expect(send(sent("10.1.2.3", PROTOCOL.tcp, tcp(22, 5000, TCP.syn)))).toBe("default-deny");
    expect(send(sent("10.1.2.3", PROTOCOL.tcp, tcp(22, 5001, TCP.ack)))).toBe("default-deny");
    enforce({ defaultAllow: false, denyCidrs: ["10.1.2.3/32"] });
    expect(send(answer)).toBe("explicit-cidr-deny");
    receive(came(TCP.syn));
    expect(send(answer)).toBe("explicit-cidr-deny");
  });

  test("what audit let through is not learned, and says drop", () => {
    enforce({ ...FRIENDS, audit: true });
    expect(send(ack("11.1.2.3", 443))).toBe("audit cidr-miss");
    expect(send(ack("11.1.2.3", 443))).toBe("audit cidr-miss");
    const flows = [...judge.programs.map("fluxvm_flows").entries()];
    expect(flows.map(({ key }) => decodeFlowKey(key).verdict)).toEqual([0]);
    enforce(FRIENDS);
    expect(send(ack("11.1.2.3", 443))).toBe("cidr-miss");
  });

  test("idle ones are over: 120 s of UDP, 2 h of TCP", () => {
    // What is known passes a migration; what is not does not.
    const isKnown = (frame: Uint8Array): boolean => {
      enforce(FRIENDS, { phase: 1 });
      return send(frame) === "allow";
    };
    for (const [frame, seconds] of [
      [datagram("10.1.2.3", 53), 120n],
      [ack("10.1.2.3", 443), 7200n],
      [echo("10.1.2.3"), 30n],
    ] as const) {
      enforce(FRIENDS);
      expect(send(frame)).toBe("allow");
      wait(seconds * SECOND);
      expect(isKnown(frame)).toBe(true);
      wait(seconds * SECOND + 1n);
      expect(isKnown(frame)).toBe(false);
    }
  });

  test("one guest's many connections push out only its own", () => {
    enforce(FRIENDS);
    const first = ack("10.1.2.3", 443);
    expect(send(first)).toBe("allow");
    for (let port = 1; port < 3000; port++) {
      wait(1n);
      judge.programs.object.program("fluxvm_egress").testRun(datagram("10.1.2.4", port));
    }
    const buckets = [...judge.programs.map("fluxvm_ct").entries()];
    expect(buckets.length).toBeLessThanOrEqual(64);
    enforce(FRIENDS, { phase: 1 });
    expect(send(first)).toBe("migration-quiesce");
  });
});

test("a connection is known while others are written beside it", async () => {
  enforce(FRIENDS, { buckets: 1 });
  const came = internet({ source: "11.1.2.3", destination: GUEST4, protocol: 6 }, tcp(5000, 22, TCP.syn));
  receive(ethernet(GUEST_MAC, HOST_MAC, ETHERTYPE.ipv4, came));
  const answer = sent("11.1.2.3", PROTOCOL.tcp, tcp(22, 5000, TCP.ack));
  const program = judge.programs.object.program("fluxvm_egress");
  const order: HammerOrder = {
    handle: program.handle,
    frames: ["10.1.2.3", "10.1.2.4"].map((destination) => syn(destination, 443)),
    end: new SharedArrayBuffer(4),
  };
  const worker = new Worker(new URL("../harness/packets/hammer.ts", import.meta.url).href);
  const ended = new Promise((resolve) => worker.addEventListener("message", resolve, { once: true }));
  worker.postMessage(order);

  for (let round = 0; round < 1000; round++) {
    program.testRun(answer, { repeat: 5000 });
    await Bun.sleep(0);
  }

  Atomics.store(new Int32Array(order.end), 0, 1);
  await ended;
  worker.terminate();
  expect(judge.denials()).toEqual([]);
}, 60_000);

describe("budgets", () => {
  test("one packet a second, known or not, and a large one is many", () => {
    enforce({ ...FRIENDS, packetsPerSecond: 1 });
    expect(send(echo("10.1.2.3"))).toBe("allow");
    expect(send(echo("10.1.2.3"))).toBe("rate-limit");
    wait((11n * SECOND) / 10n);
    expect(send(ack("10.1.2.3", 443, "x"), 3)).toBe("allow");
    wait((29n * SECOND) / 10n);
    expect(send(echo("10.1.2.3"))).toBe("rate-limit");
    wait(SECOND / 5n);
    expect(send(echo("10.1.2.3"))).toBe("allow");
  });

  test("bytes, and neither budget is drawn on when the other says no", () => {
    enforce({ ...FRIENDS, bytesPerSecond: 1000, packetsPerSecond: 2 });
    const half = datagram("10.1.2.3", 53, "x".repeat(458));
    expect(half.length).toBe(500);
    expect([send(half), send(half), send(half)]).toEqual(["allow", "allow", "rate-limit"]);
    wait(SECOND / 2n);
    expect(send(half)).toBe("allow");
  });

  test("asking for addresses has its own, and goes nowhere else", () => {
    const ask = (source: string, destination: string): Uint8Array =>
      from(internet({ source, destination, protocol: PROTOCOL.udp }, udp(68, 67)), ETHERTYPE.ipv4);
    enforce({ packetsPerSecond: 1 });
    expect(send(ask(GUEST4, GATEWAY4))).toBe("allow");
    expect(send(ask(GUEST4, "10.1.2.3"))).toBe("default-deny");
    const answers = Array.from({ length: 100 }, () => send(ask("0.0.0.0", "255.255.255.255")));
    expect(answers.filter((answer) => answer === "allow")).toHaveLength(63);
    expect(answers.at(-1)).toBe("rate-limit");
  });

  test("finding neighbours stays on the link", () => {
    const ask = (destination: string, hops: number, type = 135): Uint8Array =>
      from(internet({ source: GUEST6, destination, protocol: PROTOCOL.icmp6, hops }, icmp(type)), ETHERTYPE.ipv6);
    enforce({});
    expect(send(ask("ff02::1:ff00:7", 255))).toBe("allow");
    expect(send(ask("fe80::1", 255, 136))).toBe("allow");
    expect(send(ask("ff02::1:ff00:7", 64))).toBe("default-deny");
    expect(send(ask("2001:db8::1", 255))).toBe("default-deny");
    expect(send(ask("ff02::1", 255, 134))).toBe("default-deny");
    const coded = ask("ff02::1:ff00:7", 255);
    coded[14 + 40 + 1] = 1;
    expect(send(coded)).toBe("default-deny");
  });
});

test("totals are of packets as they leave, and of bytes of frames", () => {
  enforce(FRIENDS);
  const frame = ack("10.1.2.3", 443, "x".repeat(100));
  send(frame, 4);
  send(syn("11.1.2.3", 443));
  expect(judge.programs.totals(SLOT)).toEqual({
    allowedPackets: 4,
    allowedBytes: frame.length,
    droppedPackets: 1,
    droppedBytes: 54,
  });
});
