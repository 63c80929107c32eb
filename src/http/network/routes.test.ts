// All routes of networks: who may call which, and bodies of somebody who means no good.
import { describe, expect, test } from "bun:test";
import { Harness } from "../testing/harness.ts";
import { connected, TOKENS } from "../testing/network.ts";

describe("who may do what", () => {
  const writes: readonly [string, string][] = [
    ["POST", "/v1/network/groups"],
    ["DELETE", "/v1/network/groups/x"],
    ["POST", "/v1/network/cnp"],
    ["DELETE", "/v1/network/cnp/x"],
    ["POST", "/v1/network/ipcache/remote"],
    ["DELETE", "/v1/network/ipcache/remote/1"],
    ["POST", "/v1/network/refresh-dns"],
  ];
  const reads = [
    "groups",
    "groups/x",
    "cnp",
    "cnp/x",
    "identities",
    "observe",
    "health",
    "ipcache",
    "ipam",
    "endpoints",
  ].map((path) => `/v1/network/${path}`);

  test("a tenant's token has nothing to do with what is the host's", async () => {
    const harness = new Harness({ auth: TOKENS });
    for (const path of [
      ...reads,
      "/v1/network/hubble/flows",
      "/v1/network/hubble/flows/text",
      "/v1/network/hubble/ui",
    ]) {
      const answer = await harness.call("GET", path, { token: "blue" });
      expect([path, answer.status, answer.json.code]).toEqual([path, 403, "HOST_WIDE_REFUSED"]);
    }
    for (const [method, path] of writes) {
      expect((await harness.call(method, path, { token: "blue", json: {} })).json.code).toBe("HOST_WIDE_REFUSED");
    }
  });

  test("a reader changes nothing", async () => {
    const harness = new Harness({ auth: TOKENS });
    const id = await connected(harness, "blue");
    const own = [
      "policy",
      "edge",
      "conntrack",
      "capture",
      "pod-policy",
      "migration/quiesce",
      "migration/restore",
      "migration/resume",
    ];
    for (const [method, path] of [
      ...writes,
      ...own.map((name) => ["POST", `/v1/vms/${id}/network/${name}`] as const),
    ]) {
      const answer = await harness.call(method, path, { token: "reader", json: {} });
      expect([path, answer.json.code]).toEqual([path, "ADMIN_REQUIRED"]);
    }
    for (const name of ["edge", "conntrack", "capture", "migration/export"]) {
      expect((await harness.call("GET", `/v1/vms/${id}/network/${name}`, { token: "blue-reader" })).status).toBe(403);
    }
    for (const name of ["policy", "status", "effective", "stats", "flows", "migration/state"]) {
      expect((await harness.call("GET", `/v1/vms/${id}/network/${name}`, { token: "blue-reader" })).status).toBe(200);
    }
  });

  test("a tenant's sandbox is another tenant's nothing", async () => {
    const harness = new Harness({ auth: TOKENS });
    const id = await connected(harness, "blue");
    const token = "red";
    const names = ["policy", "status", "effective", "stats", "flows", "edge", "conntrack", "capture", "learned-ip"];
    for (const name of names) {
      const { json } = await harness.call("GET", `/v1/vms/${id}/network/${name}`, { token });
      expect([name, json.code]).toEqual([name, "SANDBOX_NOT_FOUND"]);
    }
    expect((await harness.call("POST", `/v1/vms/${id}/network/policy`, { token, json: {} })).status).toBe(404);
    expect((await harness.call("POST", `/v1/vms/${id}/network/policy`, { token: "blue", json: {} })).status).toBe(200);
  });
});

test("five thousand hostile bodies are refused, and change nothing", async () => {
  const harness = new Harness();
  const id = await connected(harness);
  const before = harness.network.dataplane.policies.get(id)!.fingerprint;
  const paths = [
    `/v1/vms/${id}/network/policy`,
    `/v1/vms/${id}/network/edge`,
    "/v1/network/groups",
    "/v1/network/cnp",
    "/v1/network/ipcache/remote",
  ];
  let state = 11;
  const below = (n: number): number => {
    state = (state * 48_271) % 2_147_483_647;
    return state % n;
  };
  const texts = [
    "",
    "10.0.0.0/8",
    "../..",
    "\u0000",
    "🦊",
    "a".repeat(5000),
    "__proto__",
    "tcp/443",
    "*",
    "world",
    "\ud800",
  ];
  const keys = [
    "allow_cidrs",
    "allow_ports",
    "deny_cidrs",
    "groups",
    "labels",
    "entities",
    "allow_fqdns",
    "max_egress_pps",
    "name",
    "policy",
    "identity",
    "cidrs",
    "spec",
    "metadata",
    "kind",
    "egress",
    "dns_names",
    "mac",
    "__proto__",
    "constructor",
    "",
  ];
  const value = (depth: number): unknown => {
    const kind = below(depth > 4 ? 5 : 7);
    if (kind === 0) return null;
    if (kind === 1) return below(2) === 0;
    if (kind === 2) return [0, -1, 1.5, 1e308, 2 ** 53, 65_536][below(6)];
    if (kind < 5) return texts[below(texts.length)];
    if (kind === 5) return Array.from({ length: below(5) }, () => value(depth + 1));
    return Object.fromEntries(Array.from({ length: below(6) }, () => [keys[below(keys.length)], value(depth + 1)]));
  };
  const statuses = new Map<number, number>();
  for (let round = 0; round < 5000; round += 1) {
    // Something that no policy has, so that nothing of it can be right.
    const body = { ...(value(0) as object), [`unknown-${below(9)}`]: value(1) };
    const raw = below(10) === 0 ? JSON.stringify(body).slice(0, -1 - below(5)) : JSON.stringify(body);
    const path = paths[below(paths.length)]!;
    const answer = await harness.call("POST", path, { raw, headers: { "content-type": "application/json" } });
    statuses.set(answer.status, (statuses.get(answer.status) ?? 0) + 1);
  }
  expect([...statuses.keys()].toSorted()).toEqual([400, 422]);
  expect(harness.network.dataplane.policies.get(id)!.fingerprint).toBe(before);
  expect([...harness.network.store.files.keys()]).toEqual([]);
}, 120_000);
