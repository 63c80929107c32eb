// The fabric on a dataplane that fails on demand: the policy of a sandbox that is declared, stored and in force stays the
// same thing, whatever happens in between.
import { describe, expect, test } from "bun:test";
import { codeOf } from "../errors/testing.ts";
import { parsePolicy } from "./policy.ts";
import { NetworkWorld } from "./testing/world.ts";

describe("a policy", () => {
  test("is the configuration's until there is one, then its own, stored and in force", async () => {
    const world = new NetworkWorld(undefined, { defaults: { default_allow: false, allow_cidrs: ["10.0.0.0/8"] } });
    await world.connect("a");
    expect(world.inForce("a")).toMatchObject({ defaultAllow: false, allowCidrs: ["10.0.0.0/8"] });
    expect(world.stored("a")).toBeNull();
    const answered = await world.fabric.setPolicy("a", { allow_ports: ["TCP/443"] });
    expect(answered).toEqual(parsePolicy({ allow_ports: ["tcp/443"] }));
    expect(world.stored("a")).toEqual(answered);
    expect(world.inForce("a")).toMatchObject({ defaultAllow: true, enforceCidrs: false, enforcePorts: true });
    expect(await world.synced("a")).toBe(true);
  });

  test("of a sandbox that was made with certain ports opens these, until there is another", async () => {
    const world = new NetworkWorld();
    for (const [id, ports] of [
      ["a", [443, 80]],
      ["b", []],
    ] as const) {
      world.sandboxes.set(id, { id, name: id, tenant: null, labels: {}, ports });
      await world.connect(id);
    }
    expect(world.inForce("a")).toMatchObject({ defaultAllow: false, enforcePorts: true });
    expect((await world.fabric.policy("a")).allow_ports).toEqual(["tcp/443", "tcp/80"]);
    expect(world.inForce("b")).toMatchObject({ defaultAllow: false, allowPorts: [] });
    expect(world.store.files.size).toBe(0);
    await world.fabric.setPolicy("a", {});
    expect(world.inForce("a")).toMatchObject({ defaultAllow: true, enforcePorts: false });
  });

  test("of a sandbox without a network is stored, and in force from its attach on", async () => {
    const world = new NetworkWorld();
    world.add("a");
    await world.fabric.setPolicy("a", { default_allow: false });
    expect(world.dataplane.policies.size).toBe(0);
    await world.connect("a");
    expect(world.inForce("a").defaultAllow).toBe(false);
    await world.fabric.detached("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(world.dataplane.applied).toEqual([]);
  });

  test("that cannot be put in force leaves the one before, stored and in force", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    const before = world.inForce("a").fingerprint;
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", { allow_icmp: true }))).toBe("DATAPLANE_FAILED");
    expect(world.inForce("a").fingerprint).toBe(before);
    expect(world.stored("a").deny_udp).toBe(true);
    expect((await world.fabric.policy("a")).deny_udp).toBe(true);
    expect(await world.synced("a")).toBe(true);
  });

  test("that came into force although that failed is taken back", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.dataplane.failsLate = true;
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", { deny_udp: true }))).toBe("DATAPLANE_FAILED");
    expect(world.inForce("a").denyUdp).toBe(false);
    expect(world.stored("a")).toBeNull();
    expect(await world.synced("a")).toBe(true);
  });

  test.each([1, Infinity])("that cannot be stored, %d times, changes nothing", async (failures) => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    world.store.failures = failures;
    await expect(world.fabric.setPolicy("a", { deny_udp: false })).rejects.toThrow("no space left");
    expect(world.inForce("a").denyUdp).toBe(true);
    expect((await world.fabric.policy("a")).deny_udp).toBe(true);
    expect(await world.synced("a")).toBe(true);
  });

  test("that can neither be put in force nor taken back on the disk is not declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    world.dataplane.failures.set("a", 1);
    [world.store.successes, world.store.failures] = [1, Infinity];
    expect(await codeOf(world.fabric.setPolicy("a", { deny_udp: false }))).toBe("DATAPLANE_FAILED");
    expect(world.inForce("a").denyUdp).toBe(true);
    expect((await world.fabric.policy("a")).deny_udp).toBe(true);
  });

  test("is replaced by each that comes, in the order in which they come", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    const gate = Promise.withResolvers<void>();
    world.dataplane.gate = gate.promise;
    const all = Array.from({ length: 20 }, (_, at) => world.fabric.setPolicy("a", { max_egress_pps: at + 1 }));
    gate.resolve();
    await Promise.all(all);
    expect(world.inForce("a").packetsPerSecond).toBe(20);
    expect(world.stored("a").max_egress_pps).toBe(20);
    expect(world.dataplane.applied).toHaveLength(20);
  });

  test("beyond what may wait is refused", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    const all = Array.from({ length: 100 }, (_, at) => world.fabric.setPolicy("a", { max_egress_pps: at + 1 }));
    const refused = (await Promise.allSettled(all)).filter((outcome) => outcome.status === "rejected");
    expect(refused.length).toBeLessThan(100);
    expect(new Set(refused.map(({ reason }) => reason.code))).toEqual(new Set(["SANDBOX_BUSY"]));
  });

  test("of a sandbox that is removed meanwhile is not stored", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    const gate = Promise.withResolvers<void>();
    world.dataplane.gate = gate.promise;
    const first = codeOf(world.fabric.setPolicy("a", { deny_udp: true }));
    const second = codeOf(world.fabric.setPolicy("a", { deny_udp: false }));
    const gone = world.remove("a");
    gate.resolve();
    await gone;
    expect(await Promise.all([first, second])).toContain("SANDBOX_NOT_FOUND");
    expect([...world.store.files.keys()]).toEqual([]);
    expect(await codeOf(world.fabric.setPolicy("a", {}))).toBe("SANDBOX_NOT_FOUND");
  });

  test("that names a group which is not there is refused", async () => {
    const world = new NetworkWorld();
    world.add("a");
    expect(await codeOf(world.fabric.setPolicy("a", { groups: ["none"] }))).toBe("POLICY_INVALID");
  });
});

test("an edge that says who the guest is is refused where the agent gives it its address, with a network or without", async () => {
  const world = new NetworkWorld();
  await world.connect("a");
  world.sandboxes.set("b", { id: "b", name: "b", tenant: null, labels: {}, isLeased: true });
  for (const id of ["a", "b"]) {
    expect(await codeOf(world.fabric.setEdge(id, { anti_spoof: false }))).toBe("POLICY_INVALID");
    expect(await codeOf(world.fabric.setEdge(id, { ipv4: "10.0.0.9" }))).toBe("POLICY_INVALID");
    await world.fabric.setEdge(id, { anti_spoof: true, dns_names: ["a.org"] });
  }
});

test("every connection is decided anew when that is asked for, and only where there is a network", async () => {
  const world = new NetworkWorld();
  await world.connect("a");
  await world.fabric.forgetConnections("a");
  expect(world.dataplane.applied).toEqual(["a"]);
  await world.fabric.detached("a");
  expect(await codeOf(world.fabric.forgetConnections("a"))).toBe("INVALID_STATE");
});

test("a sandbox of the same id has nothing of the one before", async () => {
  const world = new NetworkWorld();
  await world.connect("a");
  await world.fabric.setPolicy("a", { deny_udp: true });
  await world.fabric.setEdge("a", { sni_names: [] });
  await world.remove("a");
  await world.connect("a");
  expect(world.inForce("a")).toMatchObject({ denyUdp: false, names: { dns: null, sni: null } });
});

test("the next sandbox of an id waits until the one before is forgotten", async () => {
  const world = new NetworkWorld();
  await world.connect("a");
  await world.fabric.setPolicy("a", { deny_udp: true });
  const gone = world.remove("a");
  world.add("a");
  const set = world.fabric.setPolicy("a", { audit_mode: true });
  const attached = world.connect("a");
  await Promise.all([gone, set, attached]);
  expect(world.stored("a")).toMatchObject({ deny_udp: false, audit_mode: true });
  expect(world.inForce("a")).toMatchObject({ denyUdp: false, audit: true });
});
