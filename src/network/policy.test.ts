// Policies as people write them: what is normal, what is refused by which field, and how ports are written.
import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import { DENY_ALL, parseEdge, parsePolicy } from "./policy.ts";
import { parsePort, uniquePorts } from "./ports.ts";

/** The field that is named, and the message. */
function refusal(work: () => unknown): [unknown, string] {
  try {
    work();
  } catch (error) {
    if (!(error instanceof AgentError) || error.code !== "POLICY_INVALID") throw error;
    return [error.details.field, error.message];
  }
  throw new Error("nothing was refused");
}

describe("a policy", () => {
  test("has every field in the order of the wire, with the defaults of the wire", () => {
    expect(JSON.stringify(parsePolicy({}))).toBe(
      '{"default_allow":true,"allow_cidrs":[],"allow_ports":[],"max_egress_mbps":null,"max_egress_pps":null,' +
        '"sample_rate":0,"deny_cidrs":[],"allow_icmp":false,"groups":[],"labels":[],"allow_fqdns":[],"entities":[],' +
        '"audit_mode":false,"deny_udp":false}',
    );
    expect(DENY_ALL).toEqual({ ...parsePolicy({}), default_allow: false });
  });

  test("is normal: host bits, case, dots, doubles, prefixes and nulls", () => {
    const policy = parsePolicy({
      allow_cidrs: ["10.1.2.3/8", "10.0.0.0/8", "FD00::1/8"],
      allow_ports: ["TCP/443", "tcp/443", "ICMPv6/0", "icmp/0"],
      allow_fqdns: [".Example.ORG.", "example.org", "*.example.org"],
      entities: ["reserved:world", "world"],
      max_egress_mbps: null,
      groups: null,
    });
    expect(policy.allow_cidrs).toEqual(["10.0.0.0/8", "fd00::/8"]);
    expect(policy.allow_ports).toEqual(["tcp/443", "icmp6/0", "icmp/0"]);
    expect(policy.allow_fqdns).toEqual(["example.org", "*.example.org"]);
    expect(policy.entities).toEqual(["world"]);
    expect(policy.groups).toEqual([]);
  });

  test("is the same when what was written is read again", () => {
    const policy = parsePolicy({ allow_cidrs: ["10.9.9.9/12"], allow_ports: ["UDP/53"], max_egress_pps: 5 });
    expect(parsePolicy(JSON.parse(JSON.stringify(policy)))).toEqual(policy);
  });

  test.each([
    [{ allow_cidrs: ["10.0.0.0/8", "10.0.0.1"] }, "allow_cidrs[1]"],
    [{ deny_cidrs: ["10.0.0.0/33"] }, "deny_cidrs[0]"],
    [{ allow_cidrs: "10.0.0.0/8" }, "allow_cidrs"],
    [{ allow_cidrs: Array.from({ length: 1025 }, (_, at) => `10.${at >> 8}.${at & 255}.0/24`) }, "allow_cidrs"],
    [{ allow_ports: ["tcp/0"] }, "allow_ports[0]"],
    [{ allow_ports: ["icmp/8"] }, "allow_ports[0]"],
    [{ allow_ports: ["tcp/65536"] }, "allow_ports[0]"],
    [{ allow_ports: ["gre/1"] }, "allow_ports[0]"],
    [{ allow_ports: ["443"] }, "allow_ports[0]"],
    [{ max_egress_mbps: 0 }, "max_egress_mbps"],
    [{ max_egress_pps: 4_294_967_296 }, "max_egress_pps"],
    [{ max_egress_pps: 1.5 }, "max_egress_pps"],
    [{ sample_rate: 2_147_483_648 }, "sample_rate"],
    [{ sample_rate: -1 }, "sample_rate"],
    [{ groups: ["a b"] }, "groups[0]"],
    [{ groups: Array.from({ length: 9 }, (_, at) => `g${at}`) }, "groups"],
    [{ labels: ["k=v;"] }, "labels[0]"],
    [{ labels: ["a".repeat(129)] }, "labels[0]"],
    [{ allow_fqdns: ["bad host"] }, "allow_fqdns[0]"],
    [{ allow_fqdns: [`${"a".repeat(64)}.org`] }, "allow_fqdns[0]"],
    [{ allow_fqdns: ["a..b"] }, "allow_fqdns[0]"],
    [{ entities: ["moon"] }, "entities[0]"],
    [{ entities: ["constructor"] }, "entities[0]"],
    [{ default_allow: "yes" }, "default_allow"],
    [{ deny_cidr: ["10.0.0.0/8"] }, "deny_cidr"],
    [{ deny_cidr: null }, "deny_cidr"],
    [JSON.parse('{"__proto__":{"default_allow":true}}'), "__proto__"],
    [[], undefined],
    [null, undefined],
    [7, undefined],
  ])("%j is refused by name", (value, field) => {
    const [named, message] = refusal(() => parsePolicy(value));
    expect(named).toBe(field as string);
    if (field !== undefined) expect(message).toStartWith(`field ${field}: `);
  });
});

describe("an edge", () => {
  test("has nothing to check by itself, and any name", () => {
    expect(parseEdge({})).toMatchObject({ anti_spoof: null, dns_names: null, sni_names: null, max_egress_pps: null });
  });

  test("is normal", () => {
    const edge = parseEdge({ mac: "02:FC:00:00:00:0A", ipv6: "FD00:0::1", dns_names: ["*.Example.org", "x.org."] });
    expect(edge).toMatchObject({ mac: "02:fc:00:00:00:0a", ipv6: "fd00::1", dns_names: ["*.example.org", "x.org"] });
  });

  test.each([
    [{ mac: "01:00:5e:00:00:01" }, "mac"],
    [{ mac: "02:fc:00:00:00" }, "mac"],
    [{ ipv4: "fd00::1" }, "ipv4"],
    [{ ipv6: "10.0.0.1" }, "ipv6"],
    [{ dns_names: ["a.*.org"] }, "dns_names[0]"],
    [{ dns_names: ["*"] }, "dns_names[0]"],
    [{ sni_names: [`${"a".repeat(60)}.${"b".repeat(60)}.${"c".repeat(10)}`] }, "sni_names[0]"],
    [{ anti_spoof: 1 }, "anti_spoof"],
    [{ ingress: {} }, "ingress"],
  ])("%j is refused by name", (value, field) => {
    expect(refusal(() => parseEdge(value))[0]).toBe(field);
  });
});

test("ports are sorted, each once", () => {
  const ports = ["udp/53", "tcp/80", "tcp/8", "udp/53"].map((text) => parsePort(text)!);
  expect(uniquePorts(ports)).toEqual([
    { protocol: "tcp", port: 8 },
    { protocol: "tcp", port: 80 },
    { protocol: "udp", port: 53 },
  ]);
});
