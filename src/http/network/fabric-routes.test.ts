// Routes of what the sandboxes of a host have together: groups, documents, addresses, health, flows of all.
import { describe, expect, test } from "bun:test";
import { fakeFlow } from "../../network/testing/flow.ts";
import { Harness } from "../testing/harness.ts";
import { connected } from "../testing/network.ts";

describe("the host", () => {
  test("has groups, by priority, then name", async () => {
    const harness = new Harness();
    const post = (json: object) => harness.call("POST", "/v1/network/groups", { json });
    const made = await post({ name: "b", labels: ["z", "a", "z"], policy: { allow_ports: ["TCP/1"] }, priority: 1 });
    expect(made.json).toMatchObject({ name: "b", labels: ["a", "z"], policy: { allow_ports: ["tcp/1"] }, priority: 1 });
    await post({ name: "c", identity: 70_000 });
    await post({ name: "a" });
    const { json } = await harness.call("GET", "/v1/network/groups");
    expect(json.items.map(({ name }: { name: string }) => name)).toEqual(["a", "c", "b"]);
    expect((await harness.call("GET", "/v1/network/groups/c")).json.identity).toBe(70_000);
    expect((await harness.call("DELETE", "/v1/network/groups/c")).json).toEqual({ deleted: "c" });
    expect((await harness.call("GET", "/v1/network/groups/c")).json.code).toBe("NETWORK_GROUP_NOT_FOUND");
    expect((await harness.call("DELETE", "/v1/network/groups/c")).status).toBe(404);
    expect((await post({ name: "a", policy: { groups: ["b"] } })).json.details.field).toBe("policy.groups");
    expect((await post({ name: "a", policy: { allow_cidrs: ["x"] } })).json.details.field).toBe(
      "policy.allow_cidrs[0]",
    );
  });

  test("has policy documents, which are groups", async () => {
    const harness = new Harness();
    const json = {
      kind: "CiliumNetworkPolicy",
      metadata: { name: "web" },
      spec: { endpointSelector: { matchLabels: { app: "web" } }, egress: [{ toEntities: ["world"] }] },
    };
    expect((await harness.call("POST", "/v1/network/cnp", { json })).json).toMatchObject({ name: "web", priority: 50 });
    expect((await harness.call("GET", "/v1/network/cnp")).json).toEqual({ items: [json] });
    expect((await harness.call("GET", "/v1/network/cnp/web")).json).toEqual(json);
    expect((await harness.call("GET", "/v1/network/identities")).json.items).toContainEqual(
      expect.objectContaining({ name: "web", labels: ["app=web"], reserved: false }),
    );
    expect((await harness.call("DELETE", "/v1/network/cnp/web")).json).toEqual({ deleted: "web" });
    expect((await harness.call("GET", "/v1/network/cnp/web")).json.code).toBe("CNP_NOT_FOUND");
    expect((await harness.call("GET", "/v1/network/groups")).json).toEqual({ items: [] });
    const ingress = { ...json, spec: { ...json.spec, ingress: [{}] } };
    const refused = await harness.call("POST", "/v1/network/cnp", { json: ingress });
    expect([refused.status, refused.json.details.field]).toEqual([400, "spec.ingress"]);
  });

  test("has addresses here and elsewhere", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    const remote = "/v1/network/ipcache/remote";
    const json = { identity: 300, cidrs: ["10.1.0.9/16", "fd00::/64"] };
    expect((await harness.call("POST", remote, { json })).json).toEqual({ identity: 300, upserted: 2 });
    const { json: cache } = await harness.call("GET", "/v1/network/ipcache");
    expect(cache.items.map(({ ip, vm_id }: { ip: string; vm_id: string }) => [ip, vm_id])).toEqual([
      ["169.254.0.19", id],
      ["10.1.0.0/16", "00000000-0000-0000-0000-000000000000"],
      ["fd00::/64", "00000000-0000-0000-0000-000000000000"],
    ]);
    expect((await harness.call("DELETE", `${remote}/300`)).json).toEqual({ identity: 300, deleted: 2 });
    expect((await harness.call("DELETE", `${remote}/300`)).json).toEqual({ identity: 300, deleted: 0 });
    expect((await harness.call("DELETE", `${remote}/x`)).status).toBe(400);
    const zero = await harness.call("POST", remote, { json: { identity: 0, cidrs: ["10.0.0.0/8"] } });
    expect([zero.status, zero.json.details.field]).toEqual([400, "identity"]);
    expect((await harness.call("GET", "/v1/network/ipam")).json).toEqual({
      capacity: 4094,
      allocated: 1,
      quarantined: 0,
      free: 4093,
      utilization_percent: 0,
      near_exhaustion: false,
    });
  });

  test("says how it is, and shows who is connected", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    await harness.call("POST", `/v1/vms/${id}/network/policy`, {
      json: { labels: ["app=web"], allow_fqdns: ["a.example"] },
    });
    expect((await harness.call("GET", "/v1/network/health")).json).toMatchObject({
      mode: "ebpf",
      required: true,
      default_allow: true,
      bpf_object_present: true,
      bpf_object: "embedded",
      groups: 0,
      policies: 1,
      ipcache_entries: 1,
      ok: true,
      notes: [],
    });
    const { json: endpoints } = await harness.call("GET", "/v1/network/endpoints");
    expect(endpoints.items).toMatchObject([
      {
        uuid: id,
        "identity-labels": ["app=web"],
        networking: { addressing: [{ ipv4: "169.254.0.19", ipv6: null }] },
        state: "ready",
        policy: { ingress: false, egress: true, audit: false },
      },
    ]);
    expect((await harness.call("POST", "/v1/network/refresh-dns")).json).toEqual({ refreshed: 1 });
    const { json: snapshot } = await harness.call("GET", "/v1/network/observe");
    expect(snapshot).toMatchObject({ host_names: ["a.example"], endpoints: endpoints.items, health: { ok: true } });
  });

  test("shows flows as JSON, as text, and as a page that loads and runs nothing", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    harness.network.sandboxes.set(id, { id, name: "<script>alert(1)</script>", tenant: null, labels: {} });
    const identity = harness.network.fabric.identities.of(id);
    harness.network.dataplane.flowsKept = [fakeFlow({ identity })];
    const { json } = await harness.call("GET", "/v1/network/hubble/flows?limit=5&verdict=forwarded&protocol=tcp");
    expect(json.items).toMatchObject([
      {
        verdict: "FORWARDED",
        IP: { source: "169.254.0.19", destination: "198.51.100.1", ipVersion: "IPv4" },
        l4: { protocol: "TCP", source_port: 40_000, destination_port: 443 },
        source: { identity },
        destination: { identity: 2, labels: ["reserved:world"] },
        traffic_direction: "EGRESS",
      },
    ]);
    const text = await harness.call("GET", "/v1/network/hubble/flows/text");
    expect(text.text).toContain("FORWARDED TCP 169.254.0.19:40000 -> 198.51.100.1:443\n");
    const lines = await harness.call("GET", "/v1/network/hubble/flows/text?output=json&detailed=true");
    expect(JSON.parse(lines.text)).toEqual(json.items[0]);
    expect((await harness.call("GET", "/v1/network/hubble/flows/text?output=xml")).status).toBe(422);
    const page = await harness.call("GET", "/v1/network/hubble/ui");
    expect(page.headers.get("content-security-policy")).toStartWith("default-src 'none'; style-src 'sha256-");
    expect(page.text).toContain("&lt;script&gt;alert(1)&lt;/script&gt;");
    expect(page.text).not.toMatch(/<script|src=|href=|\son\w+=/);
  });
});
