// From a policy to elements of maps: keys, flags, names.
import { describe, expect, test } from "bun:test";
import {
  decodeInterfaceConfig,
  decodeLpm4Key,
  decodeLpm6Key,
  decodeNameKey,
  decodePortKey,
  INTERFACE_FLAGS,
} from "../../../ffi/layout/bpf.ts";
import { nameHash } from "./names.ts";
import { interfaceElement, rulesOf } from "./rules.ts";
import { networkWith, policyWith } from "./testing/fixtures.ts";

const place = {
  network: networkWith(),
  slot: 3,
  connectionEpoch: 9,
  connectionBuckets: 512,
  phase: 0,
  mark: 0x1000_0000,
};

describe("rules", () => {
  test("ranges of both families, whole addresses told apart", () => {
    const rules = rulesOf(policyWith({ allowCidrs: ["10.0.0.0/8", "192.0.2.1/32"], denyCidrs: ["fd00::/8"] }), 5);
    expect(rules.map(({ map, value }) => [map, value[0]])).toEqual([
      ["fluxvm_allow4", 1],
      ["fluxvm_allow4", 3],
      ["fluxvm_deny6", 1],
    ]);
    const [first, , third] = rules;
    expect(decodeLpm4Key(first?.key as Uint8Array)).toEqual({
      prefixBits: 40,
      policyId: 5,
      address: Uint8Array.of(10, 0, 0, 0),
    });
    expect(decodeLpm6Key(third?.key as Uint8Array)).toMatchObject({ prefixBits: 40, policyId: 5 });
  });

  test("ports of every protocol", () => {
    const allowPorts = (["tcp", "udp", "sctp", "icmp", "icmp6"] as const).map((protocol) => ({
      protocol,
      port: protocol.startsWith("icmp") ? 0 : 443,
    }));
    expect(rulesOf(policyWith({ allowPorts }), 6).map(({ key }) => decodePortKey(key))).toEqual([
      { policyId: 6, port: 443, protocol: 6 },
      { policyId: 6, port: 443, protocol: 17 },
      { policyId: 6, port: 443, protocol: 132 },
      { policyId: 6, port: 0, protocol: 1 },
      { policyId: 6, port: 0, protocol: 58 },
    ]);
  });

  test("a name and what is below it are one element with both flags", () => {
    const names = { dns: ["example.org", "*.example.org", "*.test"], sni: ["example.org"] };
    const rules = rulesOf(policyWith({ names }), 1);
    expect(rules.map(({ key, value }) => ({ ...decodeNameKey(key), flags: value[0] }))).toEqual([
      { policyId: 1, kind: 0, hash: nameHash("example.org"), flags: 3 },
      { policyId: 1, kind: 0, hash: nameHash("test"), flags: 2 },
      { policyId: 1, kind: 1, hash: nameHash("example.org"), flags: 1 },
    ]);
  });

  test("hashes are FNV-1a from the end", () => {
    expect(nameHash("")).toBe(0xcbf29ce484222325n);
    expect(nameHash("a")).toBe(0xaf63dc4c8601ec8cn);
    // The published value of "foobar", whose reverse this is.
    expect(nameHash("raboof")).toBe(0x85944171f73967e8n);
  });

  test("what is no range is refused", () => {
    expect(() => rulesOf(policyWith({ denyCidrs: ["10.0.0.0"] }), 1)).toThrow(RangeError);
  });
});

describe("the element of an interface", () => {
  test("has the whole place and the policy's number at both ends", () => {
    const element = decodeInterfaceConfig(
      interfaceElement(policyWith({ bytesPerSecond: 12_500_000, sampleRate: 100 }), 77, place),
    );
    expect(element).toMatchObject({
      policyId: 77,
      seal: 77,
      identity: 0x1000_0001,
      flags: INTERFACE_FLAGS.routed,
      slot: 3,
      ctEpoch: 9,
      ctBuckets: 512,
      sampleRate: 100,
      bytesPerSecond: 12_500_000n,
      packetsPerSecond: 0n,
      ifindex: 7,
      gateway4: Uint8Array.of(169, 254, 0, 17),
      router4: Uint8Array.of(169, 254, 0, 18),
      source4: Uint8Array.of(169, 254, 0, 19),
      fingerprint: 0xaan,
    });
  });

  test.each([
    [{ defaultAllow: true }, INTERFACE_FLAGS.defaultAllow],
    [{ enforceCidrs: true }, INTERFACE_FLAGS.enforceCidrs],
    [{ enforcePorts: true }, INTERFACE_FLAGS.enforcePorts],
    [{ allowIcmp: true }, INTERFACE_FLAGS.allowIcmp],
    [{ audit: true }, INTERFACE_FLAGS.audit],
    [{ denyUdp: true }, INTERFACE_FLAGS.denyUdp],
    [{ names: { dns: [], sni: null } }, INTERFACE_FLAGS.dnsNames],
    [{ names: { dns: null, sni: [] } }, INTERFACE_FLAGS.sniNames],
    [{ source: { antiSpoof: true, learn: false, mac: null, ipv4: null, ipv6: null } }, INTERFACE_FLAGS.antiSpoof],
    [{ source: { antiSpoof: false, learn: true, mac: null, ipv4: null, ipv6: null } }, INTERFACE_FLAGS.learn],
  ])("%p is one flag", (changes, flag) => {
    const bridged = { ...place, network: networkWith({ hook: "bridged" }) };
    expect(decodeInterfaceConfig(interfaceElement(policyWith(changes), 1, bridged)).flags).toBe(flag);
  });

  test("what the policy says of the guest goes before what the network knows", () => {
    const source = { antiSpoof: true, learn: false, mac: "02:00:00:00:00:09", ipv4: "10.0.0.9", ipv6: "fd00::9" };
    const bridged = { ...place, network: networkWith({ hook: "bridged", gateway: null, guestAddress: null }) };
    const element = decodeInterfaceConfig(interfaceElement(policyWith({ source }), 1, bridged));
    expect(element).toMatchObject({
      source4: Uint8Array.of(10, 0, 0, 9),
      sourceMac: Uint8Array.of(2, 0, 0, 0, 0, 9),
      gateway4: new Uint8Array(4),
      router4: new Uint8Array(4),
    });
  });
});
