// The commands of networks against an agent of fixed answers: what they ask, print and exit with.
import { afterAll, afterEach, beforeAll, describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type Answers, fluxctl, type StubAgent, startStub } from "../testing/stub-agent.ts";

const ID = "8d9f6a52-0d0c-4c39-9f5e-0f5d2f3b8a11";
const BOX = `/v1/vms/${ID}/network`;
const NET = "/v1/network";

const policy = {
  default_allow: true,
  allow_cidrs: ["10.0.0.0/8"],
  allow_ports: [],
  max_egress_mbps: null,
  max_egress_pps: null,
  sample_rate: 0,
  deny_cidrs: [],
  allow_icmp: false,
  groups: [],
  labels: [],
  allow_fqdns: [],
  entities: [],
  audit_mode: false,
  deny_udp: false,
};
const flow = {
  identity: 7,
  family: 4,
  source: "169.254.0.19",
  destination: "192.0.2.1",
  source_port: 40_000,
  destination_port: 443,
  protocol: 6,
  verdict: "allow",
  packets: 3,
  bytes: 180,
  last_seen_ns: 9,
};
const ping = { ...flow, family: 6, destination: "2001:db8::1", protocol: 58, verdict: "drop" };

let agent: StubAgent | null = null;
let directory = "";
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "fluxvm-network-cli-"));
});
afterAll(() => rm(directory, { recursive: true }));
afterEach(() => agent?.stop());

function serve(answers: Answers): StubAgent {
  agent = startStub(answers);
  return agent;
}

const run = (args: readonly string[], input = "") => fluxctl(["network", ...args], { FLUXVM_URL: agent!.url }, input);
const refusal = (status: number, code: string) => () => Response.json({ error: "refused", code }, { status });

describe("policy", () => {
  const answers: Answers = {
    [`GET ${BOX}/policy`]: () => Response.json(policy),
    [`POST ${BOX}/policy`]: ({ body }) => Response.json({ ...policy, ...(body as object) }),
    [`GET ${BOX}/effective`]: () => Response.json({ unresolved_names: ["gone.example", "*.example.com"] }),
  };

  test("get, and set from stdin or a file", async () => {
    const { calls } = serve(answers);
    expect((await run(["policy", "get", ID])).stdout).toContain("allow_cidrs:     10.0.0.0/8\n");
    expect(JSON.parse((await run(["policy", "get", ID, "-o", "json"])).stdout)).toEqual(policy);
    const file = join(directory, "policy.json");
    await Bun.write(file, '{"default_allow": false}');
    expect((await run(["policy", "set", ID, file])).stdout).toContain("default_allow:   false\n");
    await run(["policy", "set", ID, "-"], "{}");
    expect(calls.flatMap(({ method, body }) => (method === "POST" ? [body] : []))).toEqual([
      { default_allow: false },
      {},
    ]);
    expect((await run(["policy", "set", ID, "-"], "[]")).status).toBe(2);
  });

  test("allow and deny know ranges, ports and names, and send the whole policy", async () => {
    const { calls } = serve(answers);
    const words = ["10.1.2.3/16", "192.0.2.9", "10.0.0.0/8", "TCP/443", "icmpv6/0", "Example.ORG", "*.example.com"];
    expect((await run(["policy", "allow", ID, ...words])).status).toBe(0);
    expect(calls.find(({ method }) => method === "POST")?.body).toEqual({
      ...policy,
      allow_cidrs: ["10.0.0.0/8", "10.1.0.0/16", "192.0.2.9/32"],
      allow_ports: ["tcp/443", "icmp6/0"],
      allow_fqdns: ["example.org", "*.example.com"],
    });
    await run(["policy", "deny", ID, "fd00::1/8", "udp"]);
    expect(calls.at(-1)?.body).toEqual({ ...policy, deny_cidrs: ["fd00::/8"], deny_udp: true });
    await run(["policy", "allow", ID, "reserved:world", "host"]);
    expect(calls.at(-1)?.body).toEqual({ ...policy, entities: ["world", "host"] });
  });

  test("names that allow nothing are told, each for its reason", async () => {
    serve(answers);
    const { status, stderr } = await run(["policy", "allow", ID, "gone.example", "example.org", "*.example.com"]);
    expect([status, stderr]).toEqual([
      0,
      "fluxctl: allow_fqdns: *.example.com is never resolved and allows nothing; dns_names of the edge takes patterns\n" +
        "fluxctl: allow_fqdns: gone.example has no public address now, and allows nothing until it has\n",
    ]);
  });

  test("what is taken away must be there, and an open policy is told", async () => {
    const { calls } = serve(answers);
    const absent = await run(["policy", "allow", ID, "--remove", "10.0.0.0/9"]);
    expect([absent.status, absent.stderr]).toEqual([1, "fluxctl: allow_cidrs has no 10.0.0.0/9\n"]);
    expect(calls.every(({ method }) => method === "GET")).toBe(true);
    const last = await run(["policy", "allow", ID, "--remove", "10.0.0.0/8"]);
    expect([last.status, last.stderr]).toEqual([0, "fluxctl: no list of what is allowed is left, so everything is\n"]);
    expect(calls.at(-1)?.body).toMatchObject({ allow_cidrs: [] });
  });

  test.each([
    ["allow", "10.0.0.0/33", "no range for allow_cidrs"],
    ["allow", "fd00::/129", "no range for allow_cidrs"],
    ["allow", "tcp/0", "no port for allow_ports: it is 1 to 65535"],
    ["allow", "icmp/8", "no port for allow_ports: ICMP has 0 alone"],
    ["allow", "-x.org", "no host name for allow_fqdns"],
    ["allow", "a b", "or entity (world)"],
    ["allow", "wordl", "or entity (world)"],
    ["allow", "tcp443", "or entity (world)"],
    ["deny", "tcp/1", "is no range, and not udp"],
    ["deny", "example.org", "is no range, and not udp"],
  ])("%s %s is wrong usage, and says what it is not", async (command, rule, told) => {
    const { calls } = serve(answers);
    const { status, stderr } = await run(["policy", command, ID, "--", rule]);
    expect([status, stderr]).toEqual([2, expect.stringContaining(told)]);
    expect(calls).toEqual([]);
  });

  test("what the agent refuses has its code", async () => {
    serve({ ...answers, [`POST ${BOX}/policy`]: refusal(400, "POLICY_INVALID") });
    const { status, stderr } = await run(["policy", "set", ID, "-"], "{}");
    expect([status, stderr]).toEqual([1, "fluxctl: POLICY_INVALID: refused\n"]);
  });

  test("edge", async () => {
    const edge = { anti_spoof: true, dns_names: ["example.org", "*.example.org"], mac: null };
    const { calls } = serve({
      [`GET ${BOX}/edge`]: () => Response.json(edge),
      [`POST ${BOX}/edge`]: () => Response.json(edge),
    });
    expect((await run(["edge", "get", ID])).stdout).toBe(
      "anti_spoof: true\ndns_names:  example.org *.example.org\nmac:        -\n",
    );
    await run(["edge", "set", ID, "-"], '{"anti_spoof": true}');
    expect(calls.at(-1)?.body).toEqual({ anti_spoof: true });
  });
});

describe("traffic", () => {
  test("status fails when what is declared is not in force", async () => {
    const status = { mode: "ebpf", attached: true, interface: "vhabc", policy_synced: true, policy };
    let answer: object = status;
    serve({ [`GET ${BOX}/status`]: () => Response.json(answer) });
    const done = await run(["status", ID]);
    expect([done.status, done.stdout.split("\n")[2]]).toEqual([0, "interface:     vhabc"]);
    expect(done.stdout).not.toContain("allow_cidrs");
    answer = { ...status, policy_synced: false, enforcement: "out_of_sync" };
    expect(await run(["status", ID, "-o", "json"])).toMatchObject({ status: 1, stderr: "" });
    answer = { ...status, enforcement: "no_network" };
    const stderr = "fluxctl: the policy is stored, and there is no network to enforce it on\n";
    expect(await run(["status", ID, "-o", "json"])).toMatchObject({ status: 1, stderr });
  });

  test("stats, drops, connections and the effective policy", async () => {
    const { calls } = serve({
      [`GET ${BOX}/stats`]: () =>
        Response.json({ allowed_packets: 1, allowed_bytes: 2, dropped_packets: 3, dropped_bytes: 4 }),
      [`GET ${BOX}/drop-reasons`]: () =>
        Response.json({ items: [{ ...ping, reason_code: 4, reason: "cidr-miss", action: "audit" }] }),
      [`GET ${BOX}/conntrack`]: () => Response.json({ items: [{ ...flow, origin: "reply" }] }),
      [`POST ${BOX}/conntrack`]: () => Response.json({ ok: true }),
      [`GET ${BOX}/effective`]: () =>
        Response.json({
          effective: policy,
          membership: { matched: [{ name: "web" }, { name: "db" }] },
          enforce_cidrs: true,
          unresolved_names: ["x\x1b[1m"],
          fingerprint: "f",
        }),
    });
    expect((await run(["stats", ID])).stdout).toBe(
      "VERDICT  PACKETS  BYTES\nallow    1        2\ndrop     3        4\n",
    );
    expect((await run(["drops", ID, "--limit", "5"])).stdout.split("\n")[1]).toMatch(
      /^cidr-miss +audit +icmp6 +169\.254\.0\.19 +2001:db8::1 +3$/,
    );
    expect(calls.at(-1)?.path).toBe(`${BOX}/drop-reasons?limit=5`);
    expect((await run(["connections", ID])).stdout).toContain("reply   tcp       169.254.0.19:40000  192.0.2.1:443\n");
    expect((await run(["connections", ID, "--forget"])).stdout).toBe("");
    expect(calls.at(-1)?.body).toEqual({ action: "flush" });
    const shown = (await run(["effective", ID])).stdout;
    expect(shown).toContain("groups:           web db\n");
    expect(shown).toContain("unresolved_names: x\\x1b[1m\n");
    expect((await run(["drops", ID, "--limit", "0"])).status).toBe(2);
  });

  test("flows of all sandboxes are those of each that has a network", async () => {
    serve({
      "GET /v1/sandboxes": () => Response.json({ items: [{ id: ID }, { id: "without" }] }),
      [`GET ${BOX}/flows`]: () => Response.json({ items: [flow, ping] }),
      "GET /v1/vms/without/network/flows": refusal(409, "INVALID_STATE"),
    });
    const { stdout } = await run(["flows"]);
    expect(stdout.split("\n").map((line) => line.split(/ {2,}/))).toEqual([
      ["SANDBOX", "VERDICT", "PROTOCOL", "SOURCE", "DESTINATION", "PACKETS", "BYTES"],
      [ID, "allow", "tcp", "169.254.0.19:40000", "192.0.2.1:443", "3", "180"],
      [ID, "drop", "icmp6", "169.254.0.19", "2001:db8::1", "3", "180"],
      [""],
    ]);
    const exported = await run(["flows", ID, "--ndjson", "--verdict", "drop"]);
    expect(exported.stdout).toBe(`${JSON.stringify({ type: "fluxvm.network.flow", vm_id: ID, flow: ping })}\n`);
    // As many as there may be, unless somebody wants fewer.
    expect(agent!.calls.at(-1)?.path).toBe(`${BOX}/flows?limit=4096`);
    const once = await run(["flows", ID, "--ndjson", "--once", "--limit", "7"]);
    expect([once.stdout.split("\n").length, agent!.calls.at(-1)?.path]).toEqual([3, `${BOX}/flows?limit=7`]);
    expect((await run(["flows", "without", "-o", "json"])).status).toBe(1);
  });

  test("capture waits for its end and keeps every byte", async () => {
    const pcap = new Uint8Array([0xd4, 0xc3, 0xb2, 0xa1, 0, 10, 13, 255]);
    const token = "t".repeat(8);
    let looks = 0;
    const state = (word: string) => ({ token, seconds: 1, state: word });
    const { calls } = serve({
      [`POST ${BOX}/capture`]: () => Response.json(state("running")),
      [`GET ${BOX}/capture`]: () => Response.json({ items: [state(looks++ === 0 ? "running" : "done")] }),
      [`GET ${BOX}/capture/${token}`]: () => new Response(pcap),
    });
    expect([...(await run(["capture", ID, "-", "--seconds", "1"])).stdoutBytes]).toEqual([...pcap]);
    expect(calls[0]?.body).toEqual({ seconds: 1 });
    const file = join(directory, "x.pcap");
    expect((await run(["capture", ID, file, "--packets", "9"])).stdout).toBe("");
    expect([...(await Bun.file(file).bytes())]).toEqual([...pcap]);
    expect((await run(["capture", ID, "-", "--seconds", "31"])).status).toBe(2);
  });
});

describe("the fabric", () => {
  const group = { name: "web", labels: ["app=web"], policy, identity: 65_540, priority: 1, description: null };

  test("groups and documents", async () => {
    const document = { kind: "CiliumNetworkPolicy", metadata: { name: "web" } };
    const { calls } = serve({
      [`GET ${NET}/groups`]: () => Response.json({ items: [group] }),
      [`GET ${NET}/groups/web`]: () => Response.json(group),
      [`POST ${NET}/groups`]: () => Response.json(group),
      [`DELETE ${NET}/groups/web`]: () => Response.json({ deleted: "web" }),
      [`GET ${NET}/cnp`]: () => Response.json({ items: [document, {}] }),
      [`GET ${NET}/cnp/web`]: () => Response.json(document),
      [`POST ${NET}/cnp`]: () => Response.json(group),
      [`DELETE ${NET}/cnp/web`]: () => Response.json({ deleted: "web" }),
    });
    expect((await run(["group", "list"])).stdout).toBe(
      "NAME  PRIORITY  IDENTITY  LABELS\nweb   1         65540     app=web\n",
    );
    expect((await run(["group", "get", "web"])).stdout).toContain("identity:    65540\n");
    expect((await run(["group", "set", "-"], '{"name": "web"}')).status).toBe(0);
    expect(calls.at(-1)?.body).toEqual({ name: "web" });
    expect((await run(["group", "delete", "web", "web"])).status).toBe(0);
    expect((await run(["cnp", "list"])).stdout).toBe("NAME  KIND\nweb   CiliumNetworkPolicy\n-     -\n");
    expect(JSON.parse((await run(["cnp", "get", "web"])).stdout)).toEqual(document);
    expect((await run(["cnp", "import", "-"], JSON.stringify(document))).stdout).toContain("name:        web\n");
    expect((await run(["cnp", "delete", "web"])).status).toBe(0);
    expect(calls.filter(({ method }) => method === "DELETE").map(({ path }) => path)).toEqual([
      `${NET}/groups/web`,
      `${NET}/groups/web`,
      `${NET}/cnp/web`,
    ]);
  });

  test("identities, addresses and endpoints", async () => {
    const endpoint = {
      uuid: ID,
      name: "box",
      identity: 7,
      networking: { addressing: [{ ipv4: "169.254.0.19", ipv6: null }] },
      policy: { ingress: false, egress: true, audit: true },
    };
    const { calls } = serve({
      [`GET ${NET}/identities`]: () =>
        Response.json({ items: [{ id: 2, name: "world", labels: ["a"], reserved: true }] }),
      [`GET ${NET}/ipcache`]: () => Response.json({ items: [{ ip: "10.0.0.0/24", identity: 7, vm_id: ID }] }),
      [`POST ${NET}/ipcache/remote`]: () => Response.json({ identity: 7, upserted: 2 }),
      [`DELETE ${NET}/ipcache/remote/7`]: () => Response.json({ identity: 7, deleted: 2 }),
      [`GET ${NET}/ipam`]: () => Response.json({ capacity: 4094, allocated: 1, free: 4093 }),
      [`GET ${NET}/endpoints`]: () => Response.json({ items: [endpoint] }),
    });
    expect((await run(["identities"])).stdout).toBe("ID  NAME   LABELS\n2   world  a\n");
    expect((await run(["ipcache", "list"])).stdout).toContain(`10.0.0.0/24  7         ${ID}\n`);
    expect((await run(["ipcache", "set", "7", "10.0.0.0/24", "10.0.1.0/24"])).status).toBe(0);
    expect(calls.at(-1)?.body).toEqual({ identity: 7, cidrs: ["10.0.0.0/24", "10.0.1.0/24"] });
    expect((await run(["ipcache", "delete", "7"])).status).toBe(0);
    expect((await run(["ipcache", "delete", "0"])).status).toBe(2);
    expect((await run(["ipam"])).stdout).toContain("capacity:  4094\n");
    expect((await run(["endpoints"])).stdout.split("\n")[1]).toBe(`${ID}  box   7         169.254.0.19  yes`);
  });

  test("health says what is missing, and fails", async () => {
    const health = { mode: "ebpf", ok: true, notes: [] as string[] };
    serve({
      [`GET ${NET}/health`]: () => Response.json(health),
      [`POST ${NET}/refresh-dns`]: () => Response.json({ refreshed: 3 }),
    });
    expect(await run(["health"])).toMatchObject({ status: 0, stdout: "mode: ebpf\nok:   true\n" });
    Object.assign(health, { ok: false, notes: ["no bpffs"] });
    expect(await run(["health"])).toMatchObject({ status: 1, stdout: "mode: ebpf\nok:   false\nnote: no bpffs\n" });
    expect((await run(["refresh-dns"])).stdout).toBe("refreshed: 3\n");
  });
});
