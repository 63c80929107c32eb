// The fabric on a dataplane that fails on demand: what is declared, what is stored and what is in force stay the same
// thing, whatever happens in between.
import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import { parsePolicy } from "./policy.ts";
import { fakeNetwork, NetworkWorld } from "./testing/world.ts";

const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => "none",
    (error: unknown) => (error instanceof AgentError ? error.code : String(error)),
  );

const inForce = (world: NetworkWorld, id: string) => world.dataplane.policies.get(id)!;
const stored = (world: NetworkWorld, id: string) => {
  const text = world.store.files.get(`network-policy/${id}`);
  return text === undefined ? null : JSON.parse(text);
};
const synced = async (world: NetworkWorld, id: string) => (await world.services.views.status(id)).isSynced;

describe("a policy", () => {
  test("is the configuration's until there is one, then its own, stored and in force", async () => {
    const world = new NetworkWorld(undefined, { defaults: { default_allow: false, allow_cidrs: ["10.0.0.0/8"] } });
    await world.connect("a");
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: false, allowCidrs: ["10.0.0.0/8"] });
    expect(stored(world, "a")).toBeNull();
    const answered = await world.fabric.setPolicy("a", { allow_ports: ["TCP/443"] });
    expect(answered).toEqual(parsePolicy({ allow_ports: ["tcp/443"] }));
    expect(stored(world, "a")).toEqual(answered);
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: true, enforceCidrs: false, enforcePorts: true });
    expect(await synced(world, "a")).toBe(true);
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
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: false, enforcePorts: true });
    expect((await world.fabric.policy("a")).allow_ports).toEqual(["tcp/443", "tcp/80"]);
    expect(inForce(world, "b")).toMatchObject({ defaultAllow: false, allowPorts: [] });
    expect(world.store.files.size).toBe(0);
    await world.fabric.setPolicy("a", {});
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: true, enforcePorts: false });
  });

  test("of a sandbox without a network is stored, and in force from its attach on", async () => {
    const world = new NetworkWorld();
    world.add("a");
    await world.fabric.setPolicy("a", { default_allow: false });
    expect(world.dataplane.policies.size).toBe(0);
    await world.connect("a");
    expect(inForce(world, "a").defaultAllow).toBe(false);
    await world.fabric.detached("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(world.dataplane.applied).toEqual([]);
  });

  test("that cannot be put in force leaves the one before, stored and in force", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    const before = inForce(world, "a").fingerprint;
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", { allow_icmp: true }))).toBe("DATAPLANE_FAILED");
    expect(inForce(world, "a").fingerprint).toBe(before);
    expect(stored(world, "a").deny_udp).toBe(true);
    expect((await world.fabric.policy("a")).deny_udp).toBe(true);
    expect(await synced(world, "a")).toBe(true);
  });

  test("that came into force although that failed is taken back", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.dataplane.failsLate = true;
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", { deny_udp: true }))).toBe("DATAPLANE_FAILED");
    expect(inForce(world, "a").denyUdp).toBe(false);
    expect(stored(world, "a")).toBeNull();
    expect(await synced(world, "a")).toBe(true);
  });

  test.each([1, Infinity])("that cannot be stored, %d times, changes nothing", async (failures) => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    world.store.failures = failures;
    expect(await codeOf(world.fabric.setPolicy("a", { deny_udp: false }))).toContain("no space left");
    expect(inForce(world, "a").denyUdp).toBe(true);
    expect((await world.fabric.policy("a")).deny_udp).toBe(true);
    expect(await synced(world, "a")).toBe(true);
  });

  test("that can neither be put in force nor taken back on the disk is not declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { deny_udp: true });
    world.dataplane.failures.set("a", 1);
    [world.store.successes, world.store.failures] = [1, Infinity];
    expect(await codeOf(world.fabric.setPolicy("a", { deny_udp: false }))).toBe("DATAPLANE_FAILED");
    expect(inForce(world, "a").denyUdp).toBe(true);
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
    expect(inForce(world, "a").packetsPerSecond).toBe(20);
    expect(stored(world, "a").max_egress_pps).toBe(20);
    expect(world.dataplane.applied).toHaveLength(20);
  });

  test("beyond what may wait is refused", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    const all = Array.from({ length: 100 }, (_, at) => codeOf(world.fabric.setPolicy("a", { max_egress_pps: at + 1 })));
    expect(new Set(await Promise.all(all))).toEqual(new Set(["none", "SANDBOX_BUSY"]));
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

describe("an attach", () => {
  test("that fails leaves nothing connected", async () => {
    const world = new NetworkWorld();
    world.dataplane.failures.set("a", 2);
    expect(await codeOf(world.connect("a"))).toBe("DATAPLANE_FAILED");
    // Whoever is refused is told where to look.
    await expect(world.connect("a")).rejects.toThrow("as the test asked; fluxctl doctor says what this host lacks");
    expect(world.fabric.connected.ids()).toEqual([]);
    await world.connect("a");
  });

  test("misses no change that comes while it happens", async () => {
    const world = new NetworkWorld();
    world.add("a");
    await world.fabric.setPolicy("a", { labels: ["web"] });
    const gate = Promise.withResolvers<void>();
    world.dataplane.gate = gate.promise;
    const attached = world.connect("a");
    await Bun.sleep(1);
    const changed = world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    gate.resolve();
    await Promise.all([attached, changed]);
    expect(inForce(world, "a").denyUdp).toBe(true);
  });
});

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
    expect(inForce(world, "a").denyCidrs).toEqual(["10.0.0.0/8"]);
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_cidrs: ["11.0.0.0/8"] } });
    expect(inForce(world, "b").denyCidrs).toEqual(["11.0.0.0/8"]);
    await world.fabric.removeGroup("g");
    expect([inForce(world, "a").denyCidrs, inForce(world, "b").denyCidrs]).toEqual([[], []]);
    expect(JSON.parse(world.store.files.get("groups")!)).toEqual([]);
  });

  test("that one member cannot have is taken back from all", async () => {
    const world = await two();
    world.dataplane.failures.set("b", 1);
    const change = world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    expect(await codeOf(change)).toBe("DATAPLANE_FAILED");
    expect([inForce(world, "a").denyUdp, inForce(world, "b").denyUdp]).toEqual([false, false]);
    expect(world.fabric.groups.all()).toEqual([]);
    expect(JSON.parse(world.store.files.get("groups")!)).toEqual([]);
    expect([await synced(world, "a"), await synced(world, "b")]).toEqual([true, true]);
  });

  test("that can neither be had nor taken back on the disk is not declared", async () => {
    const world = await two();
    world.dataplane.failures.set("b", 1);
    [world.store.successes, world.store.failures] = [1, Infinity];
    const change = world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    expect(await codeOf(change)).toBe("DATAPLANE_FAILED");
    expect([inForce(world, "a").denyUdp, inForce(world, "b").denyUdp]).toEqual([false, false]);
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
    expect(inForce(world, "a").denyCidrs).toEqual(["10.0.0.0/8"]);
    await world.fabric.removeDocument("deny");
    expect(inForce(world, "a").denyCidrs).toEqual([]);
    expect(world.fabric.groups.all()).toEqual([]);
  });
});

describe("a name in a policy", () => {
  test("is resolved when it is declared, and again when its time is over", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.answers.set("a.example", [{ address: "198.51.100.1", ttlSeconds: 60 }]);
    await world.fabric.setPolicy("a", { allow_fqdns: ["a.example"] });
    expect(inForce(world, "a")).toMatchObject({ enforceCidrs: true, allowCidrs: ["198.51.100.1/32"] });
    world.answers.set("a.example", [{ address: "198.51.100.2", ttlSeconds: 60 }]);
    await world.fabric.refreshDue();
    expect(world.asked).toEqual(["a.example"]);
    world.nowMs += 60_000;
    await world.fabric.refreshDue();
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.1/32", "198.51.100.2/32"]);
    world.nowMs += 3_600_000;
    await world.fabric.refreshDue();
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.2/32"]);
    expect(await synced(world, "a")).toBe(true);
  });

  test("that nobody answers for denies", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { default_allow: true, allow_fqdns: ["gone.example"] });
    expect(inForce(world, "a")).toMatchObject({ enforceCidrs: true, allowCidrs: [] });
    expect((await world.services.views.effective("a")).unresolved).toEqual(["gone.example"]);
  });

  test("is asked for by hand, for all who have names", async () => {
    const world = new NetworkWorld();
    for (const id of ["a", "b"]) {
      await world.connect(id);
      await world.fabric.setPolicy(id, { allow_fqdns: [`${id}.example`] });
      world.answers.set(`${id}.example`, [{ address: "198.51.100.1", ttlSeconds: 60 }]);
    }
    await world.connect("c");
    expect(await world.fabric.refreshNames()).toBe(2);
    expect(inForce(world, "b").allowCidrs).toEqual(["198.51.100.1/32"]);
  });

  test("whose new addresses cannot be put in force is tried again", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.answers.set("a.example", [{ address: "198.51.100.1", ttlSeconds: 30 }]);
    await world.fabric.setPolicy("a", { allow_fqdns: ["a.example"] });
    world.answers.set("a.example", [{ address: "198.51.100.2", ttlSeconds: 30 }]);
    world.dataplane.failures.set("a", 1);
    world.nowMs += 3_600_000;
    await world.fabric.refreshDue();
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.1/32"]);
    world.nowMs += 30_000;
    await world.fabric.refreshDue();
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.2/32"]);
  });
});

describe("another agent", () => {
  const connected = (id: string, block: number) => ({ id, shortName: id.padEnd(12, "a"), network: fakeNetwork(block) });

  test("finds everything, and has the dataplane repaired to what is declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a", fakeNetwork(1));
    await world.fabric.setPolicy("a", { labels: ["web"], allow_ports: ["tcp/1"] });
    await world.fabric.setGroup({ name: "g", labels: ["web"], policy: { deny_udp: true } });
    await world.fabric.setEdge("a", { dns_names: ["a.example"] });
    await world.fabric.setRemote({ identity: 77, cidrs: ["10.0.0.0/8"] });
    const before = inForce(world, "a");
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
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.1/32"]);
    await world.fabric.refreshDue();
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.1/32"]);
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
    expect(inForce(world, "a").allowCidrs).toEqual(["198.51.100.1/32"]);
  });

  test("denies everything to whom a damaged policy belongs, until there is another", async () => {
    const world = new NetworkWorld();
    world.add("a");
    world.store.files.set("network-policy/a", '{"default_allow":tru');
    await world.connect("a");
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: false, enforceCidrs: false, allowCidrs: [] });
    expect(await codeOf(world.fabric.policy("a"))).toBe("STATE_UNAVAILABLE");
    expect((await world.services.views.status("a")).fault).not.toBeNull();
    world.dataplane.failures.set("a", 1);
    expect(await codeOf(world.fabric.setPolicy("a", {}))).toBe("DATAPLANE_FAILED");
    expect(inForce(world, "a").defaultAllow).toBe(false);
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: true, denyUdp: true });
    expect(await world.fabric.policy("a")).toMatchObject({ deny_udp: true });
  });

  test("denies everything to whom a damaged edge belongs, and keeps what can be believed", async () => {
    const world = new NetworkWorld();
    world.add("a");
    world.store.files.set("network-policy/a", '{"deny_udp":true}');
    world.store.files.set("network-edge/a", "{");
    await world.connect("a");
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: false, allowCidrs: [] });
    expect(await world.fabric.policy("a")).toMatchObject({ deny_udp: true });
    expect(await codeOf(world.services.views.edge("a"))).toBe("STATE_UNAVAILABLE");
    await world.fabric.setPolicy("a", { deny_udp: true });
    expect(inForce(world, "a").defaultAllow).toBe(false);
    await world.fabric.setEdge("a", { dns_names: ["a.example"] });
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: true, denyUdp: true, names: { dns: ["a.example"] } });
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
    expect(inForce(world, "a")).toMatchObject({ defaultAllow: false, allowCidrs: [] });
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

describe("an attachment", () => {
  test("that is whole is only looked at, and one that is lost comes back with the policy that is declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { default_allow: false });
    const wanted = inForce(world, "a");
    const applied = world.dataplane.applied.length;
    await world.fabric.mend("a");
    world.dataplane.policies.delete("a");
    expect(await synced(world, "a")).toBe(false);
    await world.fabric.mend("a");
    expect([inForce(world, "a"), world.dataplane.applied.length]).toEqual([wanted, applied]);
    expect(await synced(world, "a")).toBe(true);
  });

  test("is nobody's once its sandbox has let go of it", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.detached("a");
    const { looks } = world.dataplane;
    await world.fabric.mend("a");
    await world.fabric.mend("never there");
    expect(world.dataplane.looks).toBe(looks);
  });

  test("that cannot be put back is said in health and status until it is, or the sandbox is gone", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.dataplane.unmendable.set("a", "no room");
    expect(await codeOf(world.fabric.mend("a"))).toBe("DATAPLANE_FAILED");
    expect(await codeOf(world.fabric.setPolicy("a", { audit_mode: true }))).toBe("DATAPLANE_FAILED");
    expect(stored(world, "a")).toBeNull();
    for (const id of ["a", "gone"]) world.fabric.faults.note(id, "no room");
    expect((await world.services.views.health()).notes).toEqual([expect.stringMatching(/^2 sandboxes .*: a, gone$/)]);
    world.fabric.faults.note("gone", null);
    await world.remove("a");
    expect((await world.services.views.health()).ok).toBe(true);
    world.notes.push("its table is another agent's");
    expect(await world.services.views.health()).toMatchObject({ ok: false, notes: world.notes });
  });

  test("of an interface that was gone before the agent came is not in force", async () => {
    const world = new NetworkWorld();
    world.add("a");
    expect(await synced(world, "a")).toBe(true);
    world.fabric.faults.note("a", "its interface is gone");
    expect(await synced(world, "a")).toBe(false);
  });
});

test("an edge that says who the guest is is refused where the agent gives it its address, with a network or without", async () => {
  const world = new NetworkWorld();
  await world.connect("a");
  world.sandboxes.set("b", { id: "b", name: "b", tenant: null, labels: {}, isLeased: true });
  for (const id of ["a", "b"]) {
    expect(await codeOf(world.fabric.setEdge(id, { anti_spoof: false }))).toBe("POLICY_INVALID");
    expect(await codeOf(world.fabric.setEdge(id, { ipv4: "10.0.0.9" }))).toBe("POLICY_INVALID");
    expect(await codeOf(world.fabric.setEdge(id, { anti_spoof: true, dns_names: ["a.org"] }))).toBe("none");
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
  expect(inForce(world, "a")).toMatchObject({ denyUdp: false, names: { dns: null, sni: null } });
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
  expect(stored(world, "a")).toMatchObject({ deny_udp: false, audit_mode: true });
  expect(inForce(world, "a")).toMatchObject({ denyUdp: false, audit: true });
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
