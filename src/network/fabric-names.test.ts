// Names in policies of the fabric: they are resolved again when their time is over, and one without an answer denies.
import { describe, expect, test } from "bun:test";
import { NetworkWorld } from "./testing/world.ts";

describe("a name in a policy", () => {
  test("is resolved when it is declared, and again when its time is over", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    world.answers.set("a.example", [{ address: "198.51.100.1", ttlSeconds: 60 }]);
    await world.fabric.setPolicy("a", { allow_fqdns: ["a.example"] });
    expect(world.inForce("a")).toMatchObject({ enforceCidrs: true, allowCidrs: ["198.51.100.1/32"] });
    world.answers.set("a.example", [{ address: "198.51.100.2", ttlSeconds: 60 }]);
    await world.fabric.refreshDue();
    expect(world.asked).toEqual(["a.example"]);
    world.nowMs += 60_000;
    await world.fabric.refreshDue();
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.1/32", "198.51.100.2/32"]);
    world.nowMs += 3_600_000;
    await world.fabric.refreshDue();
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.2/32"]);
    expect(await world.synced("a")).toBe(true);
  });

  test("that nobody answers for denies", async () => {
    const world = new NetworkWorld();
    await world.connect("a");
    await world.fabric.setPolicy("a", { default_allow: true, allow_fqdns: ["gone.example"] });
    expect(world.inForce("a")).toMatchObject({ enforceCidrs: true, allowCidrs: [] });
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
    expect(world.inForce("b").allowCidrs).toEqual(["198.51.100.1/32"]);
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
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.1/32"]);
    world.nowMs += 30_000;
    await world.fabric.refreshDue();
    expect(world.inForce("a").allowCidrs).toEqual(["198.51.100.2/32"]);
  });
});
