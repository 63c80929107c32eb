// Policy documents as groups: what is taken, what it becomes, and what is refused by which field.
import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import { parseDocument } from "./cnp.ts";
import { GroupBook } from "./group-book.ts";

const labels = { endpointSelector: { matchLabels: { app: "web" } } };

const document = (spec: object, change: object = {}) => ({
  apiVersion: "cilium.io/v2",
  kind: "CiliumNetworkPolicy",
  metadata: { name: "web", namespace: "default", uid: "1" },
  spec: { ...labels, ...spec },
  ...change,
});
const groupOf = (spec: object) => parseDocument(document(spec), []).group;
const policyOf = (spec: object) => groupOf(spec).policy;

function refusal(value: unknown): unknown {
  try {
    parseDocument(value, []);
  } catch (error) {
    if (error instanceof AgentError && error.code === "POLICY_INVALID") return error.details.field;
    throw error;
  }
  throw new Error("nothing was refused");
}

describe("a document", () => {
  test("is a group of its name and labels, which denies by default", () => {
    const group = groupOf({ description: "front", egress: [{ toCIDR: ["10.1.2.3/8"] }] });
    expect(group).toMatchObject({ name: "web", labels: ["app=web"], priority: 50, description: "front" });
    expect(group.policy).toMatchObject({ default_allow: false, allow_cidrs: ["10.0.0.0/8"], allow_ports: [] });
  });

  test("that turns default denial off leaves it to others", () => {
    expect(policyOf({ enableDefaultDeny: { egress: false, ingress: false } }).default_allow).toBe(true);
  });

  test("has destinations of every kind, and exceptions that are denied", () => {
    const policy = policyOf({
      egress: [
        { toCIDRSet: [{ cidr: "10.0.0.0/8", except: ["10.1.0.0/16"] }] },
        { toEntities: ["world-ipv4"] },
        { toFQDNs: [{ matchName: "a.example" }, { matchPattern: "*.b.example" }] },
      ],
      auditMode: true,
    });
    expect(policy).toMatchObject({
      allow_cidrs: ["10.0.0.0/8"],
      deny_cidrs: ["10.1.0.0/16"],
      entities: ["world-ipv4"],
      allow_fqdns: ["a.example", "*.b.example"],
      audit_mode: true,
    });
  });

  test("denies ranges and entities", () => {
    const policy = policyOf({ egressDeny: [{ toCIDR: ["192.0.2.0/24"], toEntities: ["host"] }] });
    expect(policy.deny_cidrs).toEqual(["192.0.2.0/24", "127.0.0.0/8", "169.254.0.0/16", "fe80::/10"]);
  });

  test.each([
    [{ port: "443", protocol: "TCP" }, ["tcp/443"]],
    [{ port: 53, protocol: "udp" }, ["udp/53"]],
    [{ port: "https" }, ["tcp/443"]],
    [{ port: "kube-apiserver", protocol: "ANY" }, ["tcp/6443"]],
    [{ port: "8000-8002" }, ["tcp/8000", "tcp/8001", "tcp/8002"]],
    [{ protocol: "ICMP" }, ["icmp/0"]],
    [{ protocol: "ICMPv6", port: "0" }, ["icmp6/0"]],
    [{ port: "9", protocol: "SCTP" }, ["sctp/9"]],
  ])("port %j is %j", (port, ports) => {
    expect(policyOf({ egress: [{ toPorts: [{ ports: [port] }] }] }).allow_ports).toEqual(ports);
  });

  test("with an empty rule allows nothing by it", () => {
    expect(policyOf({ egress: [{}] })).toMatchObject({ default_allow: false, allow_cidrs: [], allow_ports: [] });
  });

  test("of rules with ports alone is about every destination", () => {
    const policy = policyOf({
      egress: [{ toPorts: [{ ports: [{ port: "80" }] }] }, { toPorts: [{ ports: [{ port: "81" }] }] }],
    });
    expect(policy).toMatchObject({ allow_cidrs: ["0.0.0.0/0", "::/0"], allow_ports: ["tcp/80", "tcp/81"] });
  });

  test("whose rules would allow more as one is refused", () => {
    const rule = (cidr: string, port: string) => ({ toCIDR: [cidr], toPorts: [{ ports: [{ port }] }] });
    expect(refusal(document({ egress: [rule("10.0.0.0/8", "80"), rule("192.0.2.0/24", "443")] }))).toBe("spec.egress");
    const same = policyOf({ egress: [rule("10.0.0.0/8", "80"), rule("192.0.2.0/24", "80")] });
    expect(same).toMatchObject({ allow_cidrs: ["10.0.0.0/8", "192.0.2.0/24"], allow_ports: ["tcp/80"] });
    const one = policyOf({ egress: [rule("10.0.0.0/8", "80"), rule("10.0.0.0/8", "443")] });
    expect(one).toMatchObject({ allow_cidrs: ["10.0.0.0/8"], allow_ports: ["tcp/80", "tcp/443"] });
    // A rule without ports is about all of them.
    expect(refusal(document({ egress: [{ toCIDR: ["10.0.0.0/8"] }, rule("192.0.2.0/24", "443")] }))).toBe(
      "spec.egress",
    );
  });

  test.each([
    [{}, "kind"],
    [document({}, { kind: "NetworkPolicy" }), "kind"],
    [document({}, { apiVersion: "v1" }), "apiVersion"],
    [document({}, { status: {} }), "status"],
    [document({}, { specs: [] }), "specs"],
    [document({}, { metadata: { name: "a.b" } }), "metadata.name"],
    [document({ endpointSelector: {} }), "spec.endpointSelector.matchLabels"],
    [document({ endpointSelector: { matchLabels: {} } }), "spec.endpointSelector.matchLabels"],
    [document({ endpointSelector: { matchExpressions: [] } }), "spec.endpointSelector.matchLabels"],
    [document({ endpointSelector: { matchLabels: { "a b": "c" } } }), "labels[0]"],
    [document({ ingress: [{}] }), "spec.ingress"],
    [document({ ingressDeny: [{ fromCIDR: ["10.0.0.0/8"] }] }), "spec.ingressDeny"],
    [document({ enableDefaultDeny: { ingress: true } }), "spec.enableDefaultDeny.ingress"],
    [document({ egress: [{ toEndpoints: [{}] }] }), "spec.egress[0].toEndpoints"],
    [document({ egress: [{ toEntities: ["moon"] }] }), "spec.egress[0].toEntities[0]"],
    [document({ egress: [{ toCIDR: ["10.0.0.0"] }] }), "policy.allow_cidrs[0]"],
    [document({ egress: [{ toFQDNs: [{}] }] }), "spec.egress[0].toFQDNs[0]"],
    [document({ egress: [{ toPorts: [{ ports: [{ port: "1-500" }] }] }] }), "spec.egress[0].toPorts[0].ports[0].port"],
    [document({ egress: [{ toPorts: [{ ports: [{ port: "0" }] }] }] }), "spec.egress[0].toPorts[0].ports[0].port"],
    [
      document({ egress: [{ toPorts: [{ ports: [{ port: "toString" }] }] }] }),
      "spec.egress[0].toPorts[0].ports[0].port",
    ],
    [
      document({ egress: [{ toPorts: [{ ports: [{ port: "1", protocol: "GRE" }] }] }] }),
      "spec.egress[0].toPorts[0].ports[0].protocol",
    ],
    [document({ egress: [{ toPorts: [{ ports: [{ port: "80" }], rules: {} }] }] }), "spec.egress[0].toPorts[0].rules"],
    [document({ egressDeny: [{ toCIDR: ["10.0.0.0/8"], toPorts: [] }] }), "spec.egressDeny[0].toPorts"],
    [document({ egressDeny: [{ toEntities: ["health"] }] }), "spec.egressDeny[0].toEntities[0]"],
    [
      document({ egressDeny: [{ toCIDRSet: [{ cidr: "10.0.0.0/8", except: ["10.1.0.0/16"] }] }] }),
      "spec.egressDeny[0].toCIDRSet[0].except",
    ],
    [document({ nodeSelector: {} }), "spec.nodeSelector"],
  ])("%j is refused by name", (value, field) => {
    expect(refusal(value)).toBe(field);
  });
});

describe("the groups of a host", () => {
  const { book: withDocument } = GroupBook.empty.withDocument(document({}));
  const { book: withGroup } = withDocument.withGroup({ name: "own", priority: 60 });

  test("are in the order of priority, those of documents among them", () => {
    expect(withGroup.all().map(({ name }) => name)).toEqual(["web", "own"]);
    expect(withGroup.document("web")).toEqual(document({}));
  });

  // Defect l: the group of a document outlives it.
  test("lose a document and its group together, whichever is removed", () => {
    for (const book of [withGroup.withoutDocument("web"), withGroup.withoutGroup("web")]) {
      expect(book.all().map(({ name }) => name)).toEqual(["own"]);
      expect(() => book.document("web")).toThrow(new AgentError("CNP_NOT_FOUND"));
      expect(() => book.group("web")).toThrow(new AgentError("NETWORK_GROUP_NOT_FOUND"));
    }
  });

  test("are not overwritten by the other kind", () => {
    expect(() => withGroup.withGroup({ name: "web" })).toThrow("a policy document made the group");
    const own = GroupBook.empty.withGroup({ name: "web" }).book;
    expect(() => own.withDocument(document({}))).toThrow("field metadata.name");
  });

  test("are the same when what was written is read again", () => {
    const documents = [...withGroup.documents.values()].map(({ document: text }) => text);
    const again = GroupBook.parse(JSON.parse(JSON.stringify(withGroup.own)), JSON.parse(JSON.stringify(documents)));
    expect(again.all()).toEqual(withGroup.all());
  });
});
