// The fabric of another agent on the same host: it finds what is declared, and what is damaged denies.
import { describe, expect, test } from "bun:test";
import { codeOf } from "../errors/testing.ts";
import { parsePolicy } from "./policy.ts";
import { fakeNetwork, NetworkWorld } from "./testing/world.ts";

describe("another agent", () => {
  const connected = (id: string, block: number) => ({ id, shortName: id.padEnd(12, "a"), network: fakeNetwork(block) });

  test("finds everything, and has the dataplane repaired to what is declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a", fakeNetwork(1));
    await world.fabric.setPolicy("a", { labels: ["web"], allow_ports: ["tcp/1"] });
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    await world.fabric.setEdge("a", { dns_names: ["a.example"] });
    await world.fabric.setRemote({ identity: 77, cidrs: ["10.0.0.0/8"] });
    const before = world.inForce("a");
    await world.restarted();
    await world.fabric.adopt([connected("a", 1)]);
    expect(world.dataplane.repairs.at(-1)![0]!.policy).toEqual(before);
    expect(world.services.views.ipcache()).toContainEqual({
      ip: "10.0.0.0/8",
      identity: 77,
      sandboxId: "00000000-0000-0000-0000-000000000000",
    });
  });

  test("closes no way that a name had opened while nobody answers", async () => {
    const world = new NetworkWorld();
    world.answers.set("a.example", [{ address: "198.51.100.1", ttlSeconds: 60 }]);
    await world.connect("a", fakeNetwork(1));
    await world.fabric.setPolicy("a", { allow_fqdns: ["a.example"] });
    await world.fabric.tendNames();
    world.answers.clear();
    await world.restarted();
    await world.fabric.adopt([connected("a", 1)]);
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.1/32"]);
    await world.fabric.refreshDue();
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.1/32"]);
  });

  test("does not mind a damaged file of names, or one that cannot be written", async () => {
    const world = new NetworkWorld();
    world.answers.set("a.example", [{ address: "198.51.100.1", ttlSeconds: 60 }]);
    await world.connect("a", fakeNetwork(1));
    await world.fabric.setPolicy("a", { allow_fqdns: ["a.example"] });
    world.store.failures = 1;
    await world.fabric.tendNames();
    world.store.files.set("names", '{"a.example":7}');
    await world.restarted();
    await world.fabric.adopt([connected("a", 1)]);
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.1/32"]);
  });

  test("denies everything to whom a damaged policy belongs, until there is another", async () => {
    const world = new NetworkWorld();
    world.add("a");
    world.store.files.set("network-policy/a", '{"default_allow":tru');
    await world.connect("a");
    expect(world.inForce("a")).toMatchObject({ defaultAllow: false, enforceCidrs: false, allowCidrs: [] });
    expect(await codeOf(world.fabric.policy("a"))).toBe("STATE_UNAVAILABLE");
    expect((await world.services.views.status("a")).fault).not.toBeNull();
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", {}))).toBe("DATAPLANE_FAILED");
    expect(world.inForce("a").defaultAllow).toBe(false);
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(world.inForce("a")).toMatchObject({ defaultAllow: true, denyUdp: true });
    expect(await world.fabric.policy("a")).toMatchObject({ deny_udp: true });
  });

  test("denies everything to whom a damaged edge belongs, and keeps what can be believed", async () => {
    const world = new NetworkWorld();
    world.add("a");
    world.store.files.set("network-policy/a", '{"deny_udp":true}');
    world.store.files.set("network-edge/a", "{");
    await world.connect("a");
    expect(world.inForce("a")).toMatchObject({ defaultAllow: false, allowCidrs: [] });
    expect(await world.fabric.policy("a")).toMatchObject({ deny_udp: true });
    expect(await codeOf(world.services.views.edge("a"))).toBe("STATE_UNAVAILABLE");
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(world.inForce("a").defaultAllow).toBe(false);
    await world.fabric.setEdge("a", { dns_names: ["a.example"] });
    expect(world.inForce("a")).toMatchObject({ defaultAllow: true, denyUdp: true, names: { dns: ["a.example"] } });
    await world.restarted();
    expect(await world.services.views.edge("a")).toMatchObject({ dns_names: ["a.example"] });
  });

  test("denies everything to whom a policy belongs that cannot be compiled any more", async () => {
    const world = new NetworkWorld();
    await world.connect("a", fakeNetwork(1));
    await world.fabric.setPolicy("a", { labels: ["web"] });
    const groups = Array.from({ length: 9 }, (_, at) => ({ name: `g${at}`, labels: ["web"] }));
    await world.store.write("groups", groups);
    await world.restarted();
    await world.fabric.adopt([connected("a", 1)]);
    expect(world.inForce("a")).toMatchObject({ defaultAllow: false, allowCidrs: [] });
  });

  test.each(["groups", "cnp", "ipcache"])("does not start with a damaged file of %s", async (name) => {
    const world = new NetworkWorld();
    world.store.files.set(name, '[{"name":');
    expect(await codeOf(world.restarted())).toBe("STATE_UNAVAILABLE");
    world.store.files.set(name, '[{"unknown":1}]');
    expect(await codeOf(world.restarted())).toBe("STATE_UNAVAILABLE");
  });

  test("forgets what belongs to sandboxes that are no more", async () => {
    const world = new NetworkWorld();
    world.add("kept");
    await world.store.writeOf("network-policy", "kept", parsePolicy({}));
    await world.store.writeOf("network-policy", "lost", parsePolicy({}));
    await world.store.writeOf("network-edge", "lost", {});
    await world.restarted();
    await world.fabric.adopt([]);
    expect([...world.store.files.keys()]).toEqual(["network-policy/kept"]);
  });
});
