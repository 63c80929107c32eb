// What the edge of a guest decides, packet by packet, in words of the contract: the names that it asks for in the clear, and
// the addresses that it sends from.
import { describe, expect, test } from "bun:test";
import { addressBytes, ETHERTYPE, ethernet, internet, joined, macBytes, PROTOCOL, udp } from "../harness/frames.ts";
import { greeting, question } from "../harness/names.ts";
import { ack, datagram, HOST_MAC, Judge, syn } from "../harness/packets/judge.ts";
import { GATEWAY4, GUEST4, GUEST6, GUEST_MAC } from "../harness/packets/policies.ts";

const judge = Judge.ofFile();
const { enforce, send } = judge;

describe("names", () => {
  const NAMES = { dns: ["example.org", "*.example.net"], sni: ["example.org", "*.example.net"] };

  test("questions, wherever they go", () => {
    enforce({ defaultAllow: true, names: { ...NAMES, sni: null } });
    for (const destination of ["8.8.8.8", GATEWAY4, "fd00:2::3"]) {
      const answer = (message: Uint8Array): string => send(datagram(destination, 53, message));
      expect(answer(question("example.org"))).toBe("allow");
      expect(answer(question("EXAMPLE.org"))).toBe("allow");
      expect(answer(question("a.b.example.net"))).toBe("allow");
      for (const name of ["example.net", "xexample.org", "a.example.org", "evil.test", "org"]) {
        expect(answer(question(name))).toBe("dns-deny");
      }
      expect(answer(question(["x.example.net"]))).toBe("dns-deny");
      expect(answer(question("example.org", [0xc0, 12, 0, 1, 0, 1]))).toBe("dns-deny");
      expect(answer(question("example.org").subarray(0, 20))).toBe("dns-deny");
      expect(answer(new Uint8Array(0))).toBe("dns-deny");
    }
    const stream = (message: Uint8Array): Uint8Array => Uint8Array.of(0, message.length, ...message);
    expect(send(syn("8.8.8.8", 53))).toBe("allow");
    expect(send(ack("8.8.8.8", 53, stream(question("example.org"))))).toBe("allow");
    expect(send(ack("8.8.8.8", 53, stream(question("evil.test"))))).toBe("dns-deny");
    const two = Buffer.concat([stream(question("example.org")), stream(question("evil.test"))]);
    expect(send(ack("8.8.8.8", 53, two))).toBe("dns-deny");
  });

  test("the host's resolver is asked whatever is allowed, but for names", () => {
    enforce({ defaultAllow: false, denyUdp: true });
    expect(send(datagram(GATEWAY4, 53, question("anything.test")))).toBe("allow");
    expect(send(syn(GATEWAY4, 53))).toBe("allow");
    expect(send(datagram(GATEWAY4, 54, question("anything.test")))).toBe("udp-deny");
    enforce({ names: { dns: [], sni: null } });
    expect(send(datagram(GATEWAY4, 53, question("anything.test")))).toBe("dns-deny");
  });

  test("greetings, once a connection", () => {
    enforce({ defaultAllow: true, names: { ...NAMES, dns: null } });
    expect(send(syn("10.1.2.3", 443))).toBe("allow");
    for (const wrong of [
      greeting("evil.test"),
      greeting("example.net"),
      greeting("example.org").with(4, 20),
      greeting("example.org").subarray(0, 50),
    ]) {
      expect(send(ack("10.1.2.3", 443, wrong))).toBe("sni-deny");
    }
    expect(send(ack("10.1.2.3", 443, Uint8Array.of(0x16)))).toBe("sni-deny");
    expect(send(ack("10.1.2.3", 443, greeting("example.org")))).toBe("allow");
    // What follows is not looked into: it may begin with anything.
    expect(send(ack("10.1.2.3", 443, greeting("evil.test")))).toBe("allow");
    expect(send(syn("10.1.2.3", 443))).toBe("allow");
    expect(send(ack("10.1.2.3", 443, greeting("evil.test")))).toBe("sni-deny");
    expect(send(ack("10.1.2.3", 443, "GET / HTTP/1.1"))).toBe("allow");
  });
});

describe("sources", () => {
  const source = { antiSpoof: true, learn: false, mac: GUEST_MAC, ipv4: GUEST4, ipv6: GUEST6 };
  const as = (address: string, mac = GUEST_MAC): Uint8Array => {
    const destination = address.includes(":") ? "fd00:2::3" : "10.1.2.3";
    const packet = internet({ source: address, destination, protocol: PROTOCOL.udp }, udp(1, 2));
    return ethernet(HOST_MAC, mac, address.includes(":") ? ETHERTYPE.ipv6 : ETHERTYPE.ipv4, packet);
  };

  test("are the guest's own, always", () => {
    enforce({ defaultAllow: true, audit: true, source }, { network: { hook: "bridged" } });
    expect(send(as(GUEST4))).toBe("allow");
    expect(send(as(GUEST6))).toBe("allow");
    expect(send(as("fe80::7"))).toBe("allow");
    expect(send(as("10.9.9.9"))).toBe("spoof-ip");
    expect(send(as("0.0.0.0"))).toBe("spoof-ip");
    expect(send(as("fd00:1::36"))).toBe("spoof-ip");
    expect(send(as(GUEST4, "02:fc:00:00:00:04"))).toBe("spoof-mac");
    enforce({ defaultAllow: true, source }, { network: { hook: "routed" } });
    expect(send(as(GUEST4, "02:fc:00:00:00:04"))).toBe("allow");
    expect(send(as("169.254.5.34"))).toBe("allow");
    expect(send(as(GATEWAY4))).toBe("spoof-ip");
  });

  test("neighbours are told the truth", () => {
    const says = (mac: string, address: string): Uint8Array => {
      const sender = joined(macBytes(mac), addressBytes(address));
      const body = joined([0, 1, 8, 0, 6, 4, 0, 2], sender, [2, 0, 0, 0, 0, 1, 10, 0, 0, 1]);
      return ethernet(HOST_MAC, GUEST_MAC, ETHERTYPE.arp, body);
    };
    enforce({ source }, { network: { hook: "bridged" } });
    expect(send(says(GUEST_MAC, GUEST4))).toBe("allow");
    expect(send(says(GUEST_MAC, "0.0.0.0"))).toBe("allow");
    expect(send(says(GUEST_MAC, "10.0.0.1"))).toBe("spoof-ip");
    expect(send(says("02:fc:00:00:00:04", GUEST4))).toBe("spoof-mac");
    expect(send(says(GUEST_MAC, GUEST4).subarray(0, 30))).toBe("spoof-mac");
  });
});
