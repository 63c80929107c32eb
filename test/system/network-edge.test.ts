// The edge of a guest, with real frames: addresses that are not its own, the address it is seen to have, and the names that
// its questions and greetings may have. On a bridge, where the guest's own frames are seen, and on a link of its own.
import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { policyOf } from "../harness/dataplane.ts";
import { ALLOWED, audited, denied } from "../harness/decisions.ts";
import { EbpfLab } from "../harness/ebpf-lab.ts";
import {
  addressBytes,
  ETHERTYPE,
  ethernet,
  internet,
  joined,
  macBytes,
  PROTOCOL,
  TCP,
  tcp,
  udp,
} from "../harness/frames.ts";
import { type Guest, WORLD } from "../harness/lab.ts";
import { greeting, question } from "../harness/names.ts";

setDefaultTimeout(60_000);

const REASON = { mac: 13, ip: 14, dns: 15, sni: 16 };
const FOREIGN_MAC = "02:66:66:66:66:66";

let nextPort = 40_000;

function arp(senderMac: string, senderIp: string, target: string, from = senderMac): Uint8Array {
  const head = [0, 1, 8, 0, 6, 4, 0, 1];
  const sender = joined(macBytes(senderMac), addressBytes(senderIp));
  return ethernet(
    "ff:ff:ff:ff:ff:ff",
    from,
    ETHERTYPE.arp,
    joined(head, sender, new Uint8Array(6), addressBytes(target)),
  );
}

describe("a guest on a bridge", () => {
  const place = EbpfLab.ofSuite({ guests: 2, hook: "bridged" });
  const { enforce, decide } = place;
  const own = (guest: Guest) => ({ ...policyOf(guest).source, antiSpoof: true, ipv6: guest.ipv6 });

  test("sends from no hardware address but its own", async () => {
    const guest = place.guest();
    const packet = () =>
      internet({ source: guest.ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(nextPort++, 7));
    const from = (mac: string) => ethernet(guest.routerMac, mac, ETHERTYPE.ipv4, packet());
    await enforce({});
    expect(await decide(from(FOREIGN_MAC))).toEqual(ALLOWED);
    await enforce({ source: own(guest) });
    expect(await decide(from(guest.mac))).toEqual(ALLOWED);
    expect(await decide(from(FOREIGN_MAC))).toMatchObject({ arrived: false, counted: "dropped", reason: REASON.mac });
  });

  test("sends from no address but its own, in either family, also where denials are only watched", async () => {
    const guest = place.guest();
    const from = (source: string, destination: string) =>
      guest.frame({ source, destination, protocol: PROTOCOL.udp }, udp(nextPort++, 7));
    for (const audit of [false, true]) {
      await enforce({ source: own(guest), audit });
      expect(await decide(from(guest.ipv4, WORLD.ipv4))).toEqual(ALLOWED);
      expect(await decide(from(guest.ipv6, WORLD.ipv6))).toEqual(ALLOWED);
      expect(await decide(from("10.77.0.99", WORLD.ipv4))).toEqual(denied(REASON.ip));
      expect(await decide(from("fd00:1ab:0:0:0:0:0:99", WORLD.ipv6))).toEqual(denied(REASON.ip));
      expect(await decide(from("0.0.0.0", WORLD.ipv4))).toEqual(denied(REASON.ip));
    }
  });

  test("claims no address of a neighbour by ARP", async () => {
    const [guest, neighbour] = [place.guest(0), place.guest(1)];
    await enforce({ source: own(guest) });
    const claimed = async (frame: Uint8Array) => {
      const seen = await guest.exchange(frame, neighbour);
      return seen.some(({ ethertype }) => ethertype === ETHERTYPE.arp);
    };
    expect(await claimed(arp(guest.mac, guest.ipv4, neighbour.ipv4))).toBe(true);
    expect(await claimed(arp(guest.mac, neighbour.ipv4, place.guest().addresses.gateway4))).toBe(false);
    expect(await claimed(arp(FOREIGN_MAC, guest.ipv4, neighbour.ipv4, guest.mac))).toBe(false);
  });

  test("is kept from its neighbour on the bridge by its own policy", async () => {
    const [guest, neighbour] = [place.guest(0), place.guest(1)];
    const direct = () => {
      const head = { source: guest.ipv4, destination: neighbour.ipv4, protocol: PROTOCOL.udp };
      return ethernet(neighbour.mac, guest.mac, ETHERTYPE.ipv4, internet(head, udp(nextPort++, 7)));
    };
    await enforce({});
    expect(await guest.exchange(direct(), neighbour)).toHaveLength(1);
    await enforce({ denyCidrs: [`${neighbour.ipv4}/32`] });
    expect(await guest.exchange(direct(), neighbour)).toEqual([]);
  });

  test("is learned by what it says", async () => {
    const guest = place.guest();
    await enforce({ source: { ...policyOf(guest).source, learn: true } });
    await guest.exchange(arp(guest.mac, "10.77.0.41", guest.addresses.gateway4), guest);
    expect(await place.dataplane.learnedAddress(guest)).toEqual({ address: "10.77.0.41", source: "arp" });
    const packet = guest.frame({ source: "10.77.0.42", destination: WORLD.ipv4, protocol: PROTOCOL.udp }, udp(1, 2));
    await guest.exchange(packet, place.lab.world);
    expect(await place.dataplane.learnedAddress(guest)).toEqual({ address: "10.77.0.42", source: "ip" });
  });
});

describe("names", () => {
  const place = EbpfLab.ofSuite();
  const { enforce, decide } = place;
  const ask = (name: string, destination: string = WORLD.ipv4) => {
    const source = destination.includes(":") ? place.guest().ipv6 : place.guest().ipv4;
    return place.guest().frame({ source, destination, protocol: PROTOCOL.udp }, udp(nextPort++, 53, question(name)));
  };

  test("a question may have the names that are listed, and what is below them where that is listed", async () => {
    await enforce({ names: { dns: ["example.org", "*.example.net"], sni: null } });
    for (const destination of [WORLD.ipv4, WORLD.ipv6]) {
      for (const name of ["example.org", "EXAMPLE.org", "a.example.net", "a.b.example.net"]) {
        expect([name, await decide(ask(name, destination))]).toEqual([name, ALLOWED]);
      }
      for (const name of ["example.net", "a.example.org", "notexample.org", "example.org.evil.test", "org"]) {
        expect([name, await decide(ask(name, destination))]).toEqual([name, denied(REASON.dns)]);
      }
    }
  });

  test("a question to the host's own resolver is asked for its name as well", async () => {
    const { gateway4 } = place.guest().addresses;
    await enforce({ defaultAllow: false, names: { dns: ["example.org"], sni: null } });
    expect(await decide(ask("example.org", gateway4))).toMatchObject({ counted: "allowed", reason: null });
    expect(await decide(ask("example.com", gateway4))).toMatchObject({ counted: "dropped", reason: REASON.dns });
  });

  test("something else on the port of questions is none", async () => {
    await enforce({ names: { dns: ["example.org"], sni: null } });
    const head = { source: place.guest().ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.udp };
    const whole = question("example.org");
    for (const [what, payload] of [
      ["nothing", ""],
      ["no question", "tunnel"],
      ["half a question", whole.subarray(0, 20)],
      ["two questions", whole.with(5, 2)],
      ["an answer", whole.with(2, 0x81)],
    ] as const) {
      const decision = await decide(place.guest().frame(head, udp(nextPort++, 53, payload)));
      expect([what, decision]).toEqual([what, denied(REASON.dns)]);
    }
  });

  test("a greeting may have the names that are listed; without a name, or with half of one, it is none", async () => {
    await enforce({ names: { dns: null, sni: ["example.org"] } });
    const greet = async (payload: Uint8Array) => {
      const head = { source: place.guest().ipv4, destination: WORLD.ipv4, protocol: PROTOCOL.tcp };
      const port = nextPort++;
      expect(await decide(place.guest().frame(head, tcp(port, 443, TCP.syn)))).toEqual(ALLOWED);
      return await decide(place.guest().frame(head, tcp(port, 443, TCP.ack | TCP.push, payload)));
    };
    expect(await greet(greeting("example.org"))).toEqual(ALLOWED);
    expect(await greet(greeting("example.com"))).toMatchObject({ arrived: false, reason: REASON.sni });
    expect(await greet(greeting(null))).toMatchObject({ arrived: false, reason: REASON.sni });
    expect(await greet(greeting("example.org").subarray(0, 60))).toMatchObject({ arrived: false, reason: REASON.sni });
    expect(await greet(new TextEncoder().encode("GET / HTTP/1.1\r\n\r\n"))).toEqual(ALLOWED);
  });

  test("an audit writes names down and lets them pass", async () => {
    await enforce({ audit: true, names: { dns: ["example.org"], sni: null } });
    expect(await decide(ask("example.com"))).toEqual(audited(REASON.dns));
  });
});
