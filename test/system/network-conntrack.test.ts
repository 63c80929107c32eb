// Connections as the program in the kernel knows them, with real packets: what is let through once goes on, is judged again
// under another policy, does not outlive its time, and draws from the budgets; and what answers is no connection of the
// guest's own.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { ALLOWED, audited, denied } from "../harness/decisions.ts";
import { EbpfLab } from "../harness/ebpf-lab.ts";
import { icmp, PROTOCOL, TCP, tcp, udp } from "../harness/frames.ts";
import { WORLD } from "../harness/lab.ts";

setDefaultTimeout(60_000);

const REASON = { denied: 3, range: 4, port: 5, rate: 7, default: 8 };
const EPHEMERAL = 50_001;

describe.each([
  ["by links", "auto"],
  ["by classifiers", "off"],
])("attached %s", (_, FLUXVM_TCX) => {
  const place = EbpfLab.ofSuite({}, { FLUXVM_TCX });
  const { enforce, decide } = place;
  let nextPort = 30_000;

  describe.each([
    ["IPv4", () => place.guest().ipv4, WORLD.ipv4, "198.51.100.0/24"],
    ["IPv6", () => place.guest().ipv6, WORLD.ipv6, "2001:db8::/64"],
  ] as const)("%s", (name, source, world, range) => {
    const out = (payload: Uint8Array, protocol: number = PROTOCOL.tcp) =>
      place.guest().frame({ source: source(), destination: world, protocol }, payload);
    /** A packet of the world reaches the guest. */
    const arrive = async (payload: Uint8Array, protocol: number = PROTOCOL.tcp) => {
      const frame = place.lab.world.frame({ source: world, destination: source(), protocol }, payload);
      expect(await place.lab.world.exchange(frame, place.guest())).toHaveLength(1);
    };

    test("what was let through goes on, and has a row of its own", async () => {
      const port = nextPort++;
      await enforce({ allowPorts: [{ protocol: "tcp", port: 443 }] });
      expect(await decide(out(tcp(port, 443, TCP.syn)))).toEqual(ALLOWED);
      await arrive(tcp(443, port, TCP.syn | TCP.ack));
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(ALLOWED);
      const row = (await place.dataplane.connections(place.guest())).find(({ sourcePort }) => sourcePort === port);
      expect(row).toMatchObject({ origin: "egress", destinationPort: 443, protocol: PROTOCOL.tcp });
    });

    // Defect c: connections come before the policy, and outlive it.
    test("a connection is judged again by a policy that denies it, and goes on under one that allows it", async () => {
      const port = nextPort++;
      await enforce({ allowCidrs: [range] });
      await decide(out(tcp(port, 443, TCP.syn)));
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(ALLOWED);
      await enforce({ allowCidrs: [range], allowPorts: [{ protocol: "tcp", port: 443 }] });
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(ALLOWED);
      await enforce({ defaultAllow: false });
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(denied(REASON.default));
      await enforce({});
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(ALLOWED);
      await enforce({ denyCidrs: [range] });
      expect(await decide(out(tcp(port, 443, TCP.ack)))).toEqual(denied(REASON.denied));
    });

    // Defect i: the answer's port is nobody's that a list could name.
    test("the guest answers whom its policy would not let it call, and calls nobody by that", async () => {
      const from = nextPort++;
      await enforce({ allowPorts: [{ protocol: "tcp", port: 443 }] });
      expect(await decide(out(tcp(22, EPHEMERAL, TCP.syn | TCP.ack)))).toEqual(denied(REASON.port));
      await arrive(tcp(EPHEMERAL, 22, TCP.syn));
      expect(await decide(out(tcp(22, EPHEMERAL, TCP.syn | TCP.ack)))).toEqual(ALLOWED);
      expect(await decide(out(tcp(22, EPHEMERAL, TCP.ack)))).toEqual(ALLOWED);
      expect(await decide(out(tcp(from, EPHEMERAL, TCP.syn)))).toEqual(denied(REASON.port));
      // A new connection by the very numbers of the old one is the guest's own.
      expect(await decide(out(tcp(22, EPHEMERAL, TCP.syn)))).toEqual(denied(REASON.port));
      const row = (await place.dataplane.connections(place.guest())).find(
        ({ destinationPort }) => destinationPort === EPHEMERAL,
      );
      expect(row).toMatchObject({ origin: "reply", sourcePort: 22 });
    });

    test("the guest answers a datagram and a ping from outside", async () => {
      const port = nextPort++;
      await enforce({ defaultAllow: false });
      expect(await decide(out(udp(161, port), PROTOCOL.udp))).toEqual(denied(REASON.default));
      await arrive(udp(port, 161), PROTOCOL.udp);
      expect(await decide(out(udp(161, port), PROTOCOL.udp))).toEqual(ALLOWED);
      const [protocol, request, reply] = name === "IPv4" ? [PROTOCOL.icmp, 8, 0] : [PROTOCOL.icmp6, 128, 129];
      await arrive(icmp(request), protocol);
      expect(await decide(out(icmp(reply), protocol))).toEqual(ALLOWED);
    });

    test("an answer still has to keep out of a denied range", async () => {
      await enforce({ denyCidrs: [range] });
      await arrive(tcp(EPHEMERAL + 1, 22, TCP.syn));
      expect(await decide(out(tcp(22, EPHEMERAL + 1, TCP.syn | TCP.ack)))).toEqual(denied(REASON.denied));
      await enforce({ defaultAllow: false });
      await arrive(tcp(EPHEMERAL + 2, 22, TCP.syn));
      expect(await decide(out(tcp(22, EPHEMERAL + 2, TCP.syn | TCP.ack)))).toEqual(ALLOWED);
      await enforce({ denyCidrs: [range] });
      expect(await decide(out(tcp(22, EPHEMERAL + 2, TCP.ack)))).toEqual(denied(REASON.denied));
    });

    // Defect e.
    test("what audit let through is no connection", async () => {
      const port = nextPort++;
      await enforce({ audit: true, defaultAllow: false });
      expect(await decide(out(udp(port, 7), PROTOCOL.udp))).toEqual(audited(REASON.default));
      expect((await place.dataplane.connections(place.guest())).some(({ sourcePort }) => sourcePort === port)).toBe(
        false,
      );
    });

    test("a connection without packets ends, sooner for what is not TCP", async () => {
      const [port, later] = [nextPort++, nextPort++];
      const minute = 60n * 1_000_000_000n;
      const start = 1_000n * minute;
      await enforce({ defaultAllow: false });
      try {
        await place.dataplane.setClock(start);
        await arrive(udp(port, 161), PROTOCOL.udp);
        await arrive(tcp(later, 22, TCP.syn));
        await place.dataplane.setClock(start + minute);
        expect(await decide(out(udp(161, port), PROTOCOL.udp))).toEqual(ALLOWED);
        // Two minutes after the packet that came last.
        await place.dataplane.setClock(start + 3n * minute - 1n);
        expect(await decide(out(udp(161, port), PROTOCOL.udp))).toEqual(ALLOWED);
        await place.dataplane.setClock(start + 6n * minute);
        expect(await decide(out(udp(161, port), PROTOCOL.udp))).toEqual(denied(REASON.default));
        expect(await decide(out(tcp(22, later, TCP.syn | TCP.ack)))).toEqual(ALLOWED);
        await place.dataplane.setClock(start + 130n * minute);
        expect(await decide(out(tcp(22, later, TCP.ack)))).toEqual(denied(REASON.default));
      } finally {
        await place.dataplane.setClock(null);
      }
    });

    test("packets of a connection draw from the budget like others", async () => {
      const port = nextPort++;
      await enforce({ packetsPerSecond: 20 });
      const sent = { frames: [out(udp(port, 7), PROTOCOL.udp)], perSecond: 1_000, count: 200 };
      const before = await place.dataplane.stats(place.guest());
      const began = performance.now();
      await place.guest().wire.flood(sent);
      await place.lab.settle();
      const seconds = (performance.now() - began) / 1_000;
      const after = await place.dataplane.stats(place.guest());
      expect(Number(after.allowedPackets - before.allowedPackets)).toBeLessThanOrEqual(20 * (seconds + 1) + 1);
      expect((await place.dataplane.drops(place.guest())).some(({ reasonCode }) => reasonCode === REASON.rate)).toBe(
        true,
      );
    });
  });
});
