// Groups of the fabric: a change of one comes into force for its members, all of them or none.
import { describe, expect, test } from "bun:test";
import { codeOf } from "../errors/testing.ts";
import { parsePolicy } from "./policy.ts";
import { fakeNetwork, NetworkWorld } from "./testing/world.ts";

describe("a group", () => {
  async function two() {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.connect("b");
    await world.fabric.setPolicy("a", { labels: ["web"] });
    await world.fabric.setPolicy("b", { labels: ["web"] });
    world.dataplane.applied.length = 0;
    return world;
  }

  test("comes into force for its members, and for nobody else", async () => {
    const world = await two();
    await world.connect("c");
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_cidrs: ["10.0.0.0/8"] } });
    expect(world.dataplane.applied.toSorted()).toEqual(["a", "b"]);
    expect(world.inForce("a").denyCidrs).toEqual(["10.0.0.0/8"]);
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_cidrs: ["11.0.0.0/8"] } });
    expect(world.inForce("b").denyCidrs).toEqual(["11.0.0.0/8"]);
    await world.fabric.removeGroup("g");
    expect([world.inForce("a").denyCidrs, world.inForce("b").denyCidrs]).toEqual([[], []]);
    expect(JSON.parse(world.store.files.get("groups")!)).toEqual([]);
  });

  test("that one member cannot have is taken back from all", async () => {
    const world = await two();
    world.dataplane.failures.set("b", 1);
    const change = world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    expect(await codeOf(change)).toBe("DATAPLANE_FAILED");
    expect([world.inForce("a").denyUdp, world.inForce("b").denyUdp]).toEqual([false, false]);
    expect(world.fabric.groups.all()).toEqual([]);
    expect(JSON.parse(world.store.files.get("groups")!)).toEqual([]);
    expect([await world.synced("a"), await world.synced("b")]).toEqual([true, true]);
  });

  test("that can neither be had nor taken back on the disk is not declared", async () => {
    const world = await two();
    world.dataplane.failures.set("b", 1);
    [world.store.successes, world.store.failures] = [1, Infinity];
    const change = world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    expect(await codeOf(change)).toBe("DATAPLANE_FAILED");
    expect([world.inForce("a").denyUdp, world.inForce("b").denyUdp]).toEqual([false, false]);
    expect(world.fabric.groups.all()).toEqual([]);
  });

  test("is removed by one write", async () => {
    const world = await two();
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    [world.store.successes, world.store.failures] = [1, Infinity];
    await world.fabric.removeGroup("g");
    expect(JSON.parse(world.store.files.get("groups")!)).toEqual([]);
  });

  test("too many for a member is refused before anything changes", async () => {
    const world = await two();
    for (let at = 0; at < 8; at += 1) await world.fabric.setGroup({ name: `g${at}`, labels: ["web"] });
    const before = world.store.files.get("groups");
    expect(await codeOf(world.fabric.setGroup({ name: "g8", labels: ["web"] }))).toBe("POLICY_INVALID");
    expect(world.store.files.get("groups")).toBe(before!);
    expect(await codeOf(world.fabric.setPolicy("a", { labels: ["web"], groups: ["g8"] }))).toBe("POLICY_INVALID");
  });

  test("of a document goes with it", async () => {
    const world = await two();
    await world.fabric.setDocument({
      kind: "CiliumNetworkPolicy",
      metadata: { name: "deny" },
      spec: { endpointSelector: { matchLabels: { role: "db" } }, egressDeny: [{ toCIDR: ["10.0.0.0/8"] }] },
    });
    await world.fabric.setPolicy("a", { labels: ["role=db"] });
    expect(world.inForce("a").denyCidrs).toEqual(["10.0.0.0/8"]);
    await world.fabric.removeDocument("deny");
    expect(world.inForce("a").denyCidrs).toEqual([]);
    expect(world.fabric.groups.all()).toEqual([]);
  });
});

test("four thousand sandboxes follow a change of their group in time", async () => {
  const world = new NetworkWorld();
  for (let at = 0; at < 4000; at += 1) {
    world.add(`s${at}`);
    await world.store.writeOf("network-policy", `s${at}`, parsePolicy({ labels: ["web"] }));
    await world.connect(`s${at}`, fakeNetwork(at + 1));
  }
  const startedMs = performance.now();
  await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_cidrs: ["10.0.0.0/8"] } });
  expect(performance.now() - startedMs).toBeLessThan(10_000);
  expect(world.dataplane.applied).toHaveLength(4000);
}, 60_000);
