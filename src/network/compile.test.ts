// From what is declared to what is enforced: several policies as one, intent that outlives its means, and what only the
// kernel's own programs can do.
import { describe, expect, test } from "bun:test";
import { compile, type Declaration } from "./compile.ts";
import { matchGroups, mergePolicies, type NetworkGroup, parseGroup } from "./groups.ts";
import { groupIdentity, SandboxIdentities } from "./identities.ts";
import { parseAddress } from "./address.ts";
import { parseEdge, parsePolicy } from "./policy.ts";
import { fakeNetwork } from "./testing/world.ts";

const group = (name: string, policy: object = {}, rest: object = {}): NetworkGroup =>
  parseGroup({ name, policy, ...rest }, []);

function compiled(policy: object, change: Partial<Declaration> = {}) {
  return compile({
    identity: 0x1000_0001,
    policy: parsePolicy(policy),
    groups: [],
    edge: parseEdge({}),
    network: null,
    addressesOf: () => [],
    ...change,
  });
}

describe("what is declared is enforced", () => {
  test("where no host name has an address", () => {
    const { enforceCidrs, allowCidrs } = compiled({ default_allow: true, allow_fqdns: ["gone.example"] });
    expect([enforceCidrs, allowCidrs]).toEqual([true, []]);
  });

  test("where host names are only patterns", () => {
    expect(compiled({ allow_fqdns: ["*.example.org"] }).enforceCidrs).toBe(true);
  });

  test("where an entity has no addresses", () => {
    expect(compiled({ entities: ["health"] })).toMatchObject({ enforceCidrs: true, allowCidrs: [] });
  });

  test("where a group declares it", () => {
    const groups = [group("a", { allow_fqdns: ["gone.example"], allow_ports: ["tcp/443"] })];
    expect(compiled({}, { groups })).toMatchObject({ enforceCidrs: true, enforcePorts: true });
  });

  test("and what is not, is not", () => {
    expect(compiled({ deny_cidrs: ["10.0.0.0/8"] })).toMatchObject({ enforceCidrs: false, enforcePorts: false });
  });
});

describe("a compiled policy", () => {
  test("has the addresses of names and entities among its ranges, each address once", () => {
    const addressesOf = (name: string) => (name === "a.example" ? [parseAddress("198.51.100.7")!] : []);
    const policy = { allow_cidrs: ["10.0.0.0/9", "10.128.0.0/9"], allow_fqdns: ["a.example"], entities: ["host"] };
    expect(compiled(policy, { addressesOf }).allowCidrs).toEqual([
      "10.0.0.0/8",
      "127.0.0.0/8",
      "169.254.0.0/16",
      "198.51.100.7/32",
      "fe80::/10",
    ]);
  });

  test("keeps the one range that opens an address of metadata", () => {
    for (const [metadata, everything] of [
      ["169.254.169.254/32", "0.0.0.0/0"],
      ["fd00:ec2::254/128", "::/0"],
    ] as const) {
      expect(compiled({ allow_cidrs: [everything, metadata] }).allowCidrs).toEqual([everything, metadata]);
      expect(compiled({ allow_cidrs: [metadata] }).allowCidrs).toEqual([metadata]);
      expect(compiled({ entities: ["world", "host"] }).allowCidrs).not.toContain(metadata);
    }
  });

  test("counts bytes, and takes the lesser of the policy's and the edge's rates", () => {
    const edge = parseEdge({ max_egress_mbps: 8, max_egress_pps: 500 });
    const both = compiled({ max_egress_mbps: 100, max_egress_pps: 100 }, { edge });
    expect([both.bytesPerSecond, both.packetsPerSecond]).toEqual([1_000_000, 100]);
    expect(compiled({ max_egress_mbps: 4_294_967_295 }).bytesPerSecond).toBe(536_870_911_875_000);
  });

  test("has ICMP without a port", () => {
    expect(compiled({ allow_ports: ["icmp/0"] }).allowPorts).toEqual([{ protocol: "icmp", port: 0 }]);
  });

  test("holds a guest to an address that the agent gave, and learns one that it did not give", () => {
    const leased = compiled({}, { network: fakeNetwork(5) }).source;
    expect(leased).toEqual({
      antiSpoof: true,
      learn: false,
      mac: "02:fc:00:00:00:03",
      ipv4: "169.254.0.83",
      ipv6: null,
    });
    const bridged = fakeNetwork(5, { hook: "bridged", namespace: null, guestAddress: null });
    expect(compiled({}, { network: bridged }).source).toMatchObject({ antiSpoof: false, learn: true, ipv4: null });
    const asked = { anti_spoof: false, learn_ip: true, ipv4: "10.0.0.9", mac: "02:00:00:00:00:01", ipv6: "fd00::9" };
    const known = { mac: asked.mac, ipv4: asked.ipv4, ipv6: asked.ipv6 };
    const edge = parseEdge(asked);
    expect(compiled({}, { network: bridged, edge }).source).toEqual({ antiSpoof: false, learn: true, ...known });
    expect(compiled({}, { network: fakeNetwork(5), edge }).source).toEqual({ ...leased, learn: true });
  });

  test("has the same digest where it decides alike, and another where anything differs", () => {
    const print = (policy: object, change: Partial<Declaration> = {}) => compiled(policy, change).fingerprint;
    expect(print({ allow_cidrs: ["10.0.0.0/9", "10.128.0.0/9"] })).toBe(print({ allow_cidrs: ["10.1.1.1/8"] }));
    const digests = [
      print({}),
      print({ default_allow: false }),
      print({ audit_mode: true }),
      print({ deny_udp: true }),
      print({ sample_rate: 1 }),
      print({ allow_fqdns: ["a.example"] }),
      print({}, { identity: 0x1000_0002 }),
      print({}, { network: fakeNetwork(1) }),
      print({}, { edge: parseEdge({ dns_names: [] }) }),
      print({}, { edge: parseEdge({ sni_names: [] }) }),
    ];
    expect(new Set(digests).size).toBe(digests.length);
    expect(print({})).toMatch(/^[0-9a-f]{32}$/);
  });

  test("with too many ranges is refused", () => {
    const many = (first: number) =>
      Array.from({ length: 1024 }, (_, at) => `${first}.${at >> 7}.${(at & 127) * 2}.0/24`);
    const groups = [1, 2, 3, 4].map((n) => group(`g${n}`, { allow_cidrs: many(n * 10) }));
    expect(() => compiled({ allow_cidrs: many(90) }, { groups })).toThrow("at most 4096");
  });

  test("says what nftables cannot do", () => {
    const only = (policy: object, change: Partial<Declaration> = {}) => compiled(policy, change).nativeOnly;
    expect(only({ allow_cidrs: ["10.0.0.0/8"], allow_ports: ["tcp/1", "udp/1"], default_allow: false })).toEqual([]);
    expect(only({ entities: ["world"] })).toEqual(["allow_cidrs"]);
    expect(only({ allow_ports: ["sctp/1"] })).toEqual(["allow_ports"]);
    expect(only({ deny_cidrs: ["10.0.0.0/8"] })).toEqual(["deny_cidrs"]);
    expect(only({ allow_icmp: true, deny_udp: true, audit_mode: true })).toEqual([
      "allow_icmp",
      "audit_mode",
      "deny_udp",
    ]);
    expect(only({ max_egress_mbps: 1, max_egress_pps: 1 })).toEqual(["max_egress_mbps", "max_egress_pps"]);
    expect(only({ allow_fqdns: ["a.example"] }, { groups: [group("a")] })).toEqual(["groups", "allow_fqdns"]);
    expect(only({}, { edge: parseEdge({ dns_names: [], anti_spoof: true }) })).toEqual(["anti_spoof", "dns_names"]);
    expect(only({}, { network: fakeNetwork(1) })).toEqual([]);
  });
});

describe("several policies as one", () => {
  const random = (below: (n: number) => number) => {
    const some = (values: readonly string[]) => values.filter(() => below(3) === 0);
    const bound = () => (below(2) === 0 ? null : 1 + below(9));
    return {
      default_allow: below(2) === 0,
      allow_cidrs: some(["10.0.0.0/8", "172.16.0.0/12", "fd00::/8"]),
      deny_cidrs: some(["10.1.0.0/16", "192.0.2.0/24"]),
      allow_ports: some(["tcp/80", "tcp/443", "udp/53"]),
      allow_fqdns: some(["a.example", "b.example"]),
      entities: some(["world", "host"]),
      max_egress_mbps: bound(),
      max_egress_pps: bound(),
      sample_rate: below(4),
      allow_icmp: below(2) === 0,
      audit_mode: below(2) === 0,
      deny_udp: below(2) === 0,
    };
  };

  test("are the same in any order, and denials and bounds only add up", () => {
    let state = 7;
    const below = (n: number): number => {
      state = (state * 48_271) % 2_147_483_647;
      return state % n;
    };
    for (let round = 0; round < 500; round += 1) {
      const own = parsePolicy(random(below));
      const groups = Array.from({ length: 1 + below(4) }, (_, at) => group(`g${at}`, random(below)));
      const one = mergePolicies(own, groups);
      const other = mergePolicies(own, groups.toReversed());
      const sorted = (policy: typeof one) =>
        Object.fromEntries(
          Object.entries(policy).map(([key, value]) => [key, Array.isArray(value) ? value.toSorted() : value]),
        );
      expect(sorted(one)).toEqual(sorted(other));
      for (const part of [own, ...groups.map(({ policy }) => policy)]) {
        expect(one.deny_cidrs).toEqual(expect.arrayContaining([...part.deny_cidrs]));
        if (!part.default_allow) expect(one.default_allow).toBe(false);
        if (part.deny_udp) expect(one.deny_udp).toBe(true);
        if (part.max_egress_mbps !== null) expect(one.max_egress_mbps!).toBeLessThanOrEqual(part.max_egress_mbps);
        if (part.max_egress_pps !== null) expect(one.max_egress_pps!).toBeLessThanOrEqual(part.max_egress_pps);
      }
      expect(mergePolicies(one, groups)).toEqual(one);
    }
  });
});

describe("membership", () => {
  const groups = [
    group("by-name"),
    group("labelled", {}, { labels: ["app=web", "tier=front"], priority: 5 }),
    group("first", {}, { labels: ["app=web"], priority: -1 }),
    group("unlabelled"),
  ];
  const names = (policy: object) => matchGroups(parsePolicy(policy), groups).map(({ name }) => name);

  test("is by name, or by all labels where there are some, in the order of priority", () => {
    expect(names({ groups: ["by-name"], labels: ["app=web"] })).toEqual(["first", "by-name"]);
    expect(names({ labels: ["app=web", "tier=front", "x"] })).toEqual(["first", "labelled"]);
    expect(names({ labels: ["tier=front"] })).toEqual([]);
  });

  // Defect k: the ninth is cut off, and may have been the one that denies.
  test("in more than eight is refused, and none is left out", () => {
    const many = Array.from({ length: 9 }, (_, at) => group(`g${at}`, {}, { labels: ["all"] }));
    expect(() => matchGroups(parsePolicy({ labels: ["all"] }), many)).toThrow("g0, g1, g2, g3, g4, g5, g6, g7, g8");
    expect(matchGroups(parsePolicy({ labels: ["all"] }), many.slice(1))).toHaveLength(8);
  });
});

describe("identities", () => {
  // Defect j: a sandbox has the number of a group.
  test("of sandboxes and groups lie apart, and apart from those that are reserved", () => {
    const identities = new SandboxIdentities();
    const seen = new Set<number>();
    for (let at = 0; at < 5000; at += 1) {
      const identity = identities.of(`sandbox-${at}`);
      expect(identity).toBeGreaterThanOrEqual(0x1000_0000);
      expect(identity).toBeLessThanOrEqual(0x7fff_ffff);
      seen.add(identity);
      const ofGroup = groupIdentity(`group-${at}`, at % 2 === 0 ? [] : [`label=${at}`], () => false);
      expect(ofGroup).toBeGreaterThanOrEqual(0x1_0000);
      expect(ofGroup).toBeLessThan(0x1000_0000);
    }
    expect(seen.size).toBe(5000);
  });

  test("are the same for the same id, also for another agent, and free again afterwards", () => {
    const identities = new SandboxIdentities();
    const identity = identities.of("a");
    expect([identities.of("a"), new SandboxIdentities().of("a"), identities.idOf(identity)]).toEqual([
      identity,
      identity,
      "a",
    ]);
    identities.release("a");
    expect(identities.idOf(identity)).toBeNull();
  });

  test("that another has are given to nobody else", () => {
    const first = groupIdentity("a", ["x"], () => false);
    expect(groupIdentity("a", ["x"], (identity) => identity === first)).toBe(first + 1);
    const one = parseGroup({ name: "one", labels: ["b", "a", "a"] }, []);
    const same = parseGroup({ name: "two", labels: ["a", "b"] }, [one]);
    expect([one.labels, same.identity]).toEqual([["a", "b"], one.identity]);
    expect(() => parseGroup({ name: "three", labels: ["c"], identity: one.identity }, [one])).toThrow("field identity");
  });

  test.each([65_535, 0, -1, 0x1000_0000, 1.5])("%d is none of a group", (identity) => {
    expect(() => parseGroup({ name: "a", identity }, [])).toThrow("field identity");
  });
});
