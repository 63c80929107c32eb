// Attachments of the fabric: one that cannot be made leaves nothing, one that is lost is mended or said to be missing.
import { describe, expect, test } from "bun:test";
import { codeOf } from "../errors/testing.ts";
import { NetworkWorld } from "./testing/world.ts";

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
    expect(world.inForce("a").denyUdp).toBe(true);
  });
});

describe("an attachment", () => {
  test("that is whole is only looked at, and one that is lost comes back with the policy that is declared", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { default_allow: false });
    const wanted = world.inForce("a");
    const applied = world.dataplane.applied.length;
    await world.fabric.mend("a");
    world.dataplane.policies.delete("a");
    expect(await world.synced("a")).toBe(false);
    await world.fabric.mend("a");
    expect([world.inForce("a"), world.dataplane.applied.length]).toEqual([wanted, applied]);
    expect(await world.synced("a")).toBe(true);
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
    expect(world.stored("a")).toBeNull();
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
    expect(await world.synced("a")).toBe(true);
    world.fabric.faults.note("a", "its interface is gone");
    expect(await world.synced("a")).toBe(false);
  });
});
