// Routes of what was seen of a sandbox, of captures, and of connections that move with it.
import { describe, expect, test } from "bun:test";
import { mkdtemp, rm } from "node:fs/promises";
import { writeSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fakeFlow } from "../../network/testing/flow.ts";
import { NetworkWorld } from "../../network/testing/world.ts";
import { Harness } from "../testing/harness.ts";
import { connected, TOKENS } from "../testing/network.ts";

describe("what was seen", () => {
  test("is told in the wire's words", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    const { dataplane } = harness.network;
    dataplane.flowsKept = [fakeFlow()];
    const { verdict: _, ...seen } = fakeFlow();
    dataplane.dropsKept = [{ ...seen, reasonCode: 4, reason: "cidr-miss", action: "drop" }];
    dataplane.connectionsKept = [{ ...seen, origin: "reply" }];
    const get = async (path: string) => (await harness.call("GET", `/v1/vms/${id}/network/${path}`)).json;
    expect(await get("stats")).toEqual({
      allowed_packets: 3,
      allowed_bytes: 180,
      dropped_packets: 1,
      dropped_bytes: 60,
    });
    const fields = {
      identity: 0x1000_0001,
      family: 4,
      source: "169.254.0.19",
      destination: "198.51.100.1",
      source_port: 40_000,
      destination_port: 443,
      protocol: 6,
    };
    const counters = { packets: 2, bytes: 120, last_seen_ns: 9_000_000_000 };
    expect(await get("flows")).toEqual({ items: [{ ...fields, verdict: "allow", ...counters }] });
    const drop = { ...fields, ...counters, reason_code: 4, reason: "cidr-miss", action: "drop" };
    expect(await get("drop-reasons")).toEqual({ items: [drop] });
    expect(await get("drops?limit=5")).toEqual({ items: [drop] });
    expect(await get("conntrack")).toEqual({ items: [{ ...fields, last_seen_ns: 9_000_000_000, origin: "reply" }] });
    expect(await get("learned-ip")).toEqual({ ip: "169.254.0.19", source: "lease" });
    dataplane.learned = { address: "169.254.0.20", source: "arp" };
    expect(await get("learned-ip")).toEqual({ ip: "169.254.0.20", source: "arp" });
  });

  test("is at most as much as is asked for, within bounds", async () => {
    const harness = new Harness();
    const id = await connected(harness);
    harness.network.dataplane.flowsKept = Array.from({ length: 5000 }, (_, at) => fakeFlow({ sourcePort: at }));
    const count = async (query: string) =>
      (await harness.call("GET", `/v1/vms/${id}/network/flows${query}`)).json.items.length;
    expect(await count("")).toBe(100);
    expect(await count("?limit=0")).toBe(1);
    expect(await count("?limit=7")).toBe(7);
    expect(await count("?limit=999999")).toBe(4096);
    expect((await harness.call("GET", `/v1/vms/${id}/network/flows?limit=x`)).status).toBe(422);
  });

  test("is decided anew on demand, which only an admin may ask for", async () => {
    const harness = new Harness({ auth: TOKENS });
    const id = await connected(harness);
    const path = `/v1/vms/${id}/network/conntrack`;
    const json = { action: "flush" };
    expect((await harness.call("POST", path, { json, token: "operator" })).json).toEqual({ ok: true });
    expect(harness.network.dataplane.applied).toEqual([id]);
    expect((await harness.call("GET", path, { token: "reader" })).json.code).toBe("ADMIN_REQUIRED");
  });
});

test("a dataplane that tells nothing says which capability is missing", async () => {
  const world = new NetworkWorld();
  Object.assign(world.dataplane, { observation: undefined, migration: undefined });
  const harness = new Harness({ network: world });
  const id = await connected(harness);
  for (const path of [
    `/v1/vms/${id}/network/stats`,
    `/v1/vms/${id}/network/migration/state`,
    "/v1/network/hubble/flows",
  ]) {
    expect((await harness.call("GET", path)).json.code).toBe("CAPABILITY_MISSING");
  }
});

test("connections move with a sandbox: no new ones, export, restore, resume", async () => {
  const harness = new Harness();
  const id = await connected(harness);
  const at = (step: string) => `/v1/vms/${id}/network/migration/${step}`;
  expect((await harness.call("GET", at("state"))).json).toEqual({ phase: "running" });
  expect((await harness.call("POST", at("quiesce"))).json).toEqual({ phase: "quiescing" });
  const document = (await harness.call("GET", at("export"))).json;
  expect((await harness.call("POST", at("restore"), { json: document })).json).toEqual({ phase: "restoring" });
  expect((await harness.call("POST", at("restore"), { json: { sandbox: "other" } })).status).toBe(400);
  expect((await harness.call("POST", at("resume"))).json).toEqual({ phase: "running" });
});

test("a capture is begun, listed, fetched as a file, and another sandbox's is not found", async () => {
  const directory = await mkdtemp(join(tmpdir(), "capture-routes-"));
  const { promise: exited, resolve } = Promise.withResolvers<number>();
  const world = new NetworkWorld(undefined, {
    capturesDir: directory,
    captureProgram: (_, descriptor) => {
      writeSync(descriptor, "pcap");
      return { exited, kill: () => resolve(0) };
    },
  });
  try {
    const harness = new Harness({ network: world });
    const id = await connected(harness);
    const other = await connected(harness);
    const path = `/v1/vms/${id}/network/capture`;
    const begun = await harness.call("POST", path, { json: { seconds: 5, packets: 10 } });
    expect(begun.json).toMatchObject({ vm_id: id, seconds: 5, packets: 10, state: "running" });
    const file = `${path}/${begun.json.token}`;
    expect((await harness.call("GET", file)).status).toBe(409);
    expect((await harness.call("POST", path)).json.code).toBe("CAPTURE_BUSY");
    resolve(0);
    while ((await harness.call("GET", path)).json.items[0].state === "running") await Bun.sleep(5);
    const fetched = await harness.call("GET", file);
    expect([fetched.text, fetched.headers.get("content-type")]).toEqual(["pcap", "application/vnd.tcpdump.pcap"]);
    expect((await harness.call("GET", path)).json.items).toMatchObject([{ state: "done", bytes: 4 }]);
    expect((await harness.call("GET", `/v1/vms/${other}/network/capture/${begun.json.token}`)).status).toBe(404);
    for (const json of [{ seconds: 0 }, { seconds: 31 }, { packets: 20_001 }]) {
      expect((await harness.call("POST", path, { json })).status).toBe(400);
    }
  } finally {
    await world.services.stop();
    await rm(directory, { recursive: true, force: true });
  }
});
