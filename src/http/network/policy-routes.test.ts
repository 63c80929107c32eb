// Routes of what a sandbox may send: its policy, its edge, and what of both is in force.
import { describe, expect, test } from "bun:test";
import { fakeNetwork } from "../../network/testing/world.ts";
import { Harness } from "../testing/harness.ts";
import { connected, TOKENS } from "../testing/network.ts";

describe("the policy of a sandbox", () => {
  test("is shown, replaced, and in force", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    const path = `/v1/vms/${id}/network/policy`;
    expect((await harness.call("GET", path)).json).toMatchObject({ default_allow: true, allow_cidrs: [] });
    const json = { default_allow: false, allow_cidrs: ["10.1.2.3/8"], max_egress_mbps: null, groups: null };
    const posted = await harness.call("POST", path, { json });
    expect([posted.status, posted.json.allow_cidrs]).toEqual([200, ["10.0.0.0/8"]]);
    expect((await harness.call("GET", path)).json).toEqual(posted.json);
    expect(Object.keys(posted.json)).toEqual([
      "default_allow",
      "allow_cidrs",
      "allow_ports",
      "max_egress_mbps",
      "max_egress_pps",
      "sample_rate",
      "deny_cidrs",
      "allow_icmp",
      "groups",
      "labels",
      "allow_fqdns",
      "entities",
      "audit_mode",
      "deny_udp",
    ]);
    const status = await harness.call("GET", `/v1/vms/${id}/network/status`);
    expect(status.json).toMatchObject({
      mode: "ebpf",
      required: true,
      attached: true,
      interface: "vhaaaaaaaaaaaa",
      schema_version: 1,
      schema_compatible: true,
      policy_synced: true,
      enforcement: "in_force",
      policy: posted.json,
      fault: null,
    });
    expect(status.json.identity).toBeGreaterThanOrEqual(0x1000_0000);
  });

  test("is in force without an attachment where nftables decides", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    harness.network.dataplane.method = "nft";
    const status = await harness.call("GET", `/v1/vms/${id}/network/status`);
    expect(status.json).toMatchObject({ attached: false, policy_synced: true, method: "nft" });
  });

  test("is shown as it is in force, with what it comes from", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    await harness.call("POST", "/v1/network/groups", {
      json: { name: "g", labels: ["web"], policy: { deny_udp: true } },
    });
    const json = { labels: ["web"], entities: ["host"], allow_fqdns: ["gone.example"] };
    await harness.call("POST", `/v1/vms/${id}/network/policy`, { json });
    const { json: view } = await harness.call("GET", `/v1/vms/${id}/network/effective`);
    expect(view).toMatchObject({
      vm_id: id,
      declared: { deny_udp: false },
      effective: { deny_udp: true, allow_cidrs: ["127.0.0.0/8", "169.254.0.0/16", "fe80::/10"] },
      membership: { vm_groups: [], vm_labels: ["web"], matched: [{ name: "g" }] },
      enforce_cidrs: true,
      unresolved_names: ["gone.example"],
    });
    expect(view.membership.identities).toEqual([view.vm_identity, ...view.group_identities]);
  });

  test("that the dataplane refuses is a 500, and the one before stays", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    harness.network.dataplane.failures.set(id, 1);
    const failed = await harness.call("POST", `/v1/vms/${id}/network/policy`, { json: { deny_udp: true } });
    expect([failed.status, failed.json.code]).toEqual([500, "DATAPLANE_FAILED"]);
    expect((await harness.call("GET", `/v1/vms/${id}/network/policy`)).json.deny_udp).toBe(false);
  });

  test("of a sandbox without a network is stored, and what only a network has is a 412", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    const post = await harness.call("POST", `/v1/vms/${id}/network/policy`, { json: { deny_udp: true } });
    expect(post.status).toBe(200);
    const status = await harness.call("GET", `/v1/vms/${id}/network/status`);
    expect(status.json).toMatchObject({ attached: false, interface: null, pin_dir: null, policy_synced: true });
    expect(status.json.enforcement).toBe("no_network");
    for (const path of ["stats", "flows", "drops", "drop-reasons", "conntrack", "learned-ip", "migration/state"]) {
      const answer = await harness.call("GET", `/v1/vms/${id}/network/${path}`);
      expect([path, answer.status, answer.json.code]).toEqual([path, 412, "INVALID_STATE"]);
    }
    expect((await harness.call("POST", `/v1/vms/${id}/network/capture`)).json.code).toBe("INVALID_STATE");
  });

  test.each([
    [{ allow_cidrs: ["10.0.0.1"] }, 400, "POLICY_INVALID", "allow_cidrs[0]"],
    [{ allow_ports: ["tcp/0"] }, 400, "POLICY_INVALID", "allow_ports[0]"],
    [{ max_egress_mbps: 0 }, 400, "POLICY_INVALID", "max_egress_mbps"],
    [{ deny_cidr: [] }, 400, "POLICY_INVALID", "deny_cidr"],
    [{ groups: ["none"] }, 400, "POLICY_INVALID", "groups[0]"],
    [{ default_allow: "no" }, 422, "INVALID_FIELD", "default_allow"],
    [{ allow_cidrs: "10.0.0.0/8" }, 422, "INVALID_FIELD", "allow_cidrs"],
  ])("%j is refused by name", async (json, status, code, field) => {
    const harness = new Harness();
    const id = await connected(harness);
    const answer = await harness.call("POST", `/v1/vms/${id}/network/policy`, { json });
    expect([answer.status, answer.json.code, answer.json.details.field]).toEqual([status, code, field]);
  });

  test("that is damaged says so, and is replaced by another", async () => {
    const harness = new Harness();
    const id = await harness.sandbox();
    harness.network.store.files.set(`network-policy/${id}`, "{");
    expect((await harness.call("GET", `/v1/vms/${id}/network/policy`)).json.code).toBe("STATE_UNAVAILABLE");
    const status = await harness.call("GET", `/v1/vms/${id}/network/status`);
    expect(status.json).toMatchObject({ policy: { default_allow: false } });
    expect(status.json.fault).toContain("cannot be used");
    expect((await harness.call("POST", `/v1/vms/${id}/network/policy`, { json: {} })).status).toBe(200);
    expect((await harness.call("GET", `/v1/vms/${id}/network/policy`)).status).toBe(200);
  });
});

test("the edge of a sandbox is shown, replaced and in force", async () => {
  const harness = new Harness();
  const id = await connected(harness);
  const path = `/v1/vms/${id}/network/edge`;
  expect((await harness.call("GET", path)).json).toMatchObject({ anti_spoof: null, dns_names: null });
  const posted = await harness.call("POST", path, { json: { dns_names: ["*.Example.org"], anti_spoof: true } });
  expect(posted.json).toMatchObject({ dns_names: ["*.example.org"], anti_spoof: true, sni_names: null });
  expect(harness.network.dataplane.policies.get(id)).toMatchObject({
    names: { dns: ["*.example.org"], sni: null },
    source: { antiSpoof: true },
  });
  const refused = await harness.call("POST", path, { json: { dns_names: ["a.*.b"] } });
  expect([refused.status, refused.json.details.field]).toEqual([400, "dns_names[0]"]);
});

test.each([
  ["anti_spoof", false],
  ["ipv4", "169.254.0.35"],
  ["ipv6", "fd00::1"],
  ["mac", "02:fc:00:00:00:09"],
])("no edge says that a guest is another one: %s", async (field, value) => {
  const harness = new Harness({ auth: TOKENS });
  const own = await connected(harness, "blue");
  const bridged = await harness.sandbox("blue");
  const beside = fakeNetwork(9, { hook: "bridged", namespace: null, guestAddress: null, gateway: null });
  await harness.network.connect(bridged, beside);
  const post = (id: string, token: string) =>
    harness.call("POST", `/v1/vms/${id}/network/edge`, { json: { [field]: value }, token });
  const leased = await post(own, "operator");
  expect([leased.status, leased.json.code, leased.json.details.field]).toEqual([400, "POLICY_INVALID", field]);
  for (const id of [own, bridged]) {
    const tenants = await post(id, "blue");
    expect([tenants.status, tenants.json.code, tenants.json.details.fields]).toEqual([
      403,
      "HOST_PATHS_REFUSED",
      [field],
    ]);
  }
  expect((await post(bridged, "operator")).status).toBe(200);
});

test("an attachment that is lost is put back before a policy is declared, and said where it cannot be", async () => {
  const harness = new Harness();
  const id = await connected(harness);
  const { dataplane } = harness.network;
  const path = `/v1/vms/${id}/network`;
  dataplane.policies.delete(id);
  const lost = (await harness.call("GET", `${path}/status`)).json;
  expect(lost).toMatchObject({ attached: false, policy_synced: false, enforcement: "out_of_sync" });
  expect((await harness.call("POST", `${path}/policy`, { json: { audit_mode: true } })).status).toBe(200);
  expect((await harness.call("GET", `${path}/status`)).json).toMatchObject({ attached: true, policy_synced: true });

  dataplane.policies.delete(id);
  dataplane.unmendable.set(id, "somebody else is there");
  const refused = await harness.call("POST", `${path}/policy`, { json: {} });
  expect([refused.status, refused.json.code]).toEqual([500, "DATAPLANE_FAILED"]);
  expect((await harness.call("GET", `${path}/policy`)).json.audit_mode).toBe(true);
  harness.network.services.life.note(id, "somebody else is there");
  const health = (await harness.call("GET", "/v1/network/health")).json;
  expect([health.ok, health.notes]).toEqual([false, [expect.stringContaining(id)]]);
  dataplane.unmendable.clear();
  await harness.network.services.life.mend(id);
  harness.network.services.life.note(id, null);
  expect((await harness.call("GET", "/v1/network/health")).json.ok).toBe(true);
  expect((await harness.call("GET", `${path}/status`)).json).toMatchObject({ attached: true, policy_synced: true });
});

test("there is no Pod policy", async () => {
  const harness = new Harness();
  const path = `/v1/vms/${await harness.sandbox()}/network/pod-policy`;
  const shown = await harness.call("GET", path);
  expect([shown.status, shown.text]).toEqual([200, "null"]);
  expect((await harness.call("POST", path, { json: {} })).json.code).toBe("NOT_SUPPORTED");
  expect((await harness.call("DELETE", path)).json.code).toBe("NOT_SUPPORTED");
});
