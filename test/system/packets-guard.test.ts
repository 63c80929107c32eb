// What the guard decides about packets that come to the host, packet by packet.
import { expect, test } from "bun:test";
import { encodeBlock4Key, encodeBlock6Key } from "../../ffi/layout/bpf.ts";
import { parseAddress } from "../../plugins/host/ebpf/addresses.ts";
import { wordKey } from "../../plugins/host/ebpf/kernel-map.ts";
import { ETHERTYPE, ethernet, internet, PROTOCOL, udp } from "../harness/frames.ts";
import { HOST_MAC } from "../harness/packets/judge.ts";
import { GUEST_MAC } from "../harness/packets/policies.ts";
import { loadGuard } from "../harness/packets/programs.ts";

const XDP_DROP = 1;
const XDP_PASS = 2;

test("the guard drops what comes from a blocked source, and counts", async () => {
  await using guard = await loadGuard();
  const run = (frame: Uint8Array): number => guard.program("fluxvm_xdp_guard").testRun(frame).verdict;
  const came = (source: string): Uint8Array => {
    const destination = source.includes(":") ? "fd00::1" : "10.0.0.1";
    const packet = internet({ source, destination, protocol: PROTOCOL.udp }, udp(1, 2));
    return ethernet(GUEST_MAC, HOST_MAC, source.includes(":") ? ETHERTYPE.ipv6 : ETHERTYPE.ipv4, packet);
  };
  const block4 = encodeBlock4Key({ prefixBits: 24, address: parseAddress("192.0.2.0") });
  const block6 = encodeBlock6Key({ prefixBits: 32, address: parseAddress("2001:db8::") });
  guard.map("fvm_xdp_block4").set(block4, wordKey(1));
  guard.map("fvm_xdp_block6").set(block6, wordKey(1));
  expect([run(came("192.0.2.9")), run(came("192.0.3.9"))]).toEqual([XDP_DROP, XDP_PASS]);
  expect([run(came("2001:db8::9")), run(came("2001:db9::9"))]).toEqual([XDP_DROP, XDP_PASS]);
  expect(run(came("192.0.3.9").subarray(0, 30))).toBe(XDP_DROP);
  expect(run(came("2001:db9::9").subarray(0, 50))).toBe(XDP_DROP);
  expect(run(ethernet(GUEST_MAC, HOST_MAC, ETHERTYPE.vlan, new Uint8Array(46)))).toBe(XDP_PASS);
  expect(run(ethernet(GUEST_MAC, HOST_MAC, ETHERTYPE.arp, new Uint8Array(28)))).toBe(XDP_PASS);
  guard.map("fvm_xdp_block4").delete(block4);
  expect(run(came("192.0.2.9"))).toBe(XDP_PASS);
  const counted = (index: number): bigint => {
    const all = guard.map("fvm_xdp_stats").get(wordKey(index)) ?? new Uint8Array(0);
    return new BigUint64Array(all.slice().buffer).reduce((sum, one) => sum + one, 0n);
  };
  expect([counted(0), counted(1)]).toEqual([4n, 5n]);
});
