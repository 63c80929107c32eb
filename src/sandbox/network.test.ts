import { describe, expect, test } from "bun:test";
import { admin, NOTHING_HELD, World } from "./testing/world.ts";

const create = { id: "one", backend: "fake", backendRequest: {} };

async function connectedWorld() {
  const world = await World.create();
  world.host.connects = true;
  return world;
}

const onlyInterface = (world: World) => [...world.host.networks.interfaces.entries()];

describe("a sandbox with a network", () => {
  test("is launched once its interface is under policy and up, and its record says how it is connected", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    const record = await core.operations.create(admin, create);
    const [name = "", found] = onlyInterface(world)[0] ?? [];

    expect(found).toMatchObject({ isUp: true, isUnderPolicy: true, block: 2 });
    expect(world.host.launchedWith).toMatchObject({ hostInterface: name });
    expect(record).toMatchObject({ guest_ip: "10.0.0.2", netns: name.replace("vh", "eph-"), dhcp_leasefile: null });
    expect(core.addressUse()).toEqual({ capacity: 7, allocated: 1, quarantined: 0 });
    expect(core.directory.all().map(({ id }) => id)).toEqual(["one"]);
  });

  test("gives it back when it stops, and gets another for its next run", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    await core.operations.create(admin, create);
    const [before] = onlyInterface(world);
    const stopped = await core.operations.stop(admin, "one");

    expect(onlyInterface(world)).toEqual([]);
    expect(stopped.guest_ip).toBeNull();
    await core.operations.start(admin, "one");
    expect(onlyInterface(world)[0]?.[1].index).not.toBe(before?.[1].index);
    await core.operations.remove(admin, "one");
    expect(onlyInterface(world)).toEqual([]);
    expect(world.host.networks.trace.slice(-2)).toEqual(["detached one", "gone one"]);
  });

  test("gets no address that something on the host still has", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    const make = (id: string) => core.operations.create(admin, { ...create, id });
    await make("one");
    const [, { ...left }] = onlyInterface(world)[0]!;
    world.host.networks.interfaces.set("left", left);
    await core.operations.remove(admin, "one");
    const { capacity, ...use } = core.addressUse();
    expect(use).toEqual({ allocated: 1, quarantined: 1 });
    for (let other = 1; other < capacity; other++) await make(`other-${other}`);
    await expect(make("last")).rejects.toMatchObject({ code: "ADDRESSES_EXHAUSTED" });
    world.host.networks.interfaces.delete("left");
    await make("last");
    expect(onlyInterface(world).at(-1)?.[1].block).toBe(left.block);
    expect(core.addressUse()).toEqual({ capacity, allocated: capacity, quarantined: 0 });
  });

  test("is not made where the host cannot connect it, and nothing is leased", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    world.host.networks.faults.add("check");

    await expect(core.operations.create(admin, create)).rejects.toMatchObject({ code: "NETWORK_FAILED" });
    expect(core.addressUse().allocated).toBe(0);
  });

  test.each(["prepare", "attach", "up"] as const)("leaves nothing when %s fails", async (fault) => {
    await using world = await connectedWorld();
    const core = world.core();
    world.host.networks.faults.add(fault);

    await expect(core.operations.create(admin, create)).rejects.toMatchObject({ code: "NETWORK_FAILED" });
    const { networks, leases, resources } = await world.holdings();
    expect({ networks, leases, resources }).toEqual({ networks: [], leases: [], resources: [] });
  });

  test("shares it with the copy on which it runs dry", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    await core.operations.create(admin, create);
    const own = world.host.launchedWith;
    world.host.launchedWith = null;
    await core.operations.dryRun(admin, "one", { command: "write /new x" });

    expect(own).not.toBeNull();
    expect(world.host.launchedWith as typeof own).toEqual(own);
    expect(onlyInterface(world)).toHaveLength(1);
    expect(world.host.networks.trace.filter((line) => line.startsWith("attach"))).toEqual(["attach one"]);
  });

  test("has a new one after it was put back to a snapshot by another launch", async () => {
    await using world = await connectedWorld();
    world.host.restores = "relaunch";
    const core = world.core();
    await core.operations.create(admin, create);
    const [before] = onlyInterface(world);
    await core.operations.dryRun(admin, "one", { command: "write /new x", paths: ["/"] });

    expect(onlyInterface(world)).toHaveLength(1);
    expect(onlyInterface(world)[0]?.[1].index).not.toBe(before?.[1].index);
    expect(core.operations.get(admin, "one").guest_ip).toBe("10.0.0.2");
  });
});

describe("while the agent runs", () => {
  const until = async (isSo: () => boolean): Promise<void> => {
    while (!isSo()) await Bun.sleep(2);
  };

  test("a network is looked at again and again, and what has ended beside it begins again", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    await core.operations.create(admin, create);
    core.startKeepers();
    const { networks } = world.host;
    await until(() => (networks.mended.get("one") ?? 0) > 2);
    expect(networks.trace.filter((line) => line.startsWith("repair"))).toEqual([]);
    const [name = "", found] = onlyInterface(world)[0] ?? [];
    if (found !== undefined) found.isBroken = true;
    await until(() => found?.isBroken === false);
    expect(networks.trace.filter((line) => line.startsWith("repair"))).toEqual([`repair ${name}`]);
    expect(networks.noted.size).toBe(0);
    await core.shutdown(1000);
  });

  test.each(["repair", "mend"] as const)("what cannot be repaired is noted, until it can be: %s", async (fault) => {
    await using world = await connectedWorld();
    const core = world.core();
    await core.operations.create(admin, create);
    const { networks } = world.host;
    networks.faults.add(fault);
    const found = onlyInterface(world)[0]?.[1];
    if (found !== undefined) found.isBroken = true;
    core.startKeepers();
    await until(() => networks.noted.size > 0);
    expect([...networks.noted]).toEqual([["one", expect.stringContaining(`${fault} failed`)]]);
    const looks = networks.mended.get("one") ?? 0;
    await until(() => (networks.mended.get("one") ?? 0) > looks);
    networks.faults.clear();
    await until(() => networks.noted.size === 0);
    await core.shutdown(1000);
  });

  test("an interface that is gone is noted, and a stopped sandbox is left alone", async () => {
    await using world = await connectedWorld();
    const core = world.core();
    await core.operations.create(admin, create);
    const { networks } = world.host;
    const [name = ""] = onlyInterface(world)[0] ?? [];
    networks.interfaces.delete(name);
    core.startKeepers();
    await until(() => networks.noted.size > 0);
    expect(networks.noted.get("one")).toContain(name);
    await core.operations.stop(admin, "one");
    const looks = networks.mended.get("one");
    await Bun.sleep(30);
    expect(networks.mended.get("one")).toBe(looks);
    await core.shutdown(1000);
  });
});

describe("an agent that begins", () => {
  test("repairs networks and takes them over before it adopts anything", async () => {
    await using world = await connectedWorld();
    await world.core().operations.create(admin, create);
    const next = world.core();
    await next.reconcile();

    const [name] = onlyInterface(world)[0] ?? [];
    expect(world.host.networks.trace.slice(-2)).toEqual([`repair ${name}`, "adopt one"]);
    expect(next.operations.get(admin, "one")).toMatchObject({ state: "ready", guest_ip: "10.0.0.2" });
    await next.operations.remove(admin, "one");
    expect(onlyInterface(world)).toEqual([]);
  });

  test.each(["remove.journalled", "ledger.released", "remove.released"] as const)(
    "finishes a removal that ended at %s, and has nothing to say of its network",
    async (point) => {
      await using world = await connectedWorld();
      const { promise: crashed, resolve } = Promise.withResolvers<void>();
      let isArmed = false;
      const crashPoint = async (passed: string): Promise<void> => {
        if (!isArmed || passed !== point || (point === "ledger.released" && onlyInterface(world).length > 0)) return;
        resolve();
        await new Promise(() => undefined);
      };
      const core = world.core({ crashPoint });
      await core.operations.create(admin, create);
      isArmed = true;
      void core.operations.remove(admin, "one");
      await crashed;
      const { networks } = world.host;
      const before = networks.trace.length;
      await world.core().reconcile();

      expect([...networks.noted]).toEqual([]);
      const told = networks.trace.slice(before);
      expect(told).toEqual([point === "remove.journalled" ? "adopt one" : "adopt ", "detached one", "gone one"]);
      expect(await world.holdings()).toEqual(NOTHING_HELD);
    },
  );

  test("tells nobody of one whose interface is gone, and of one that could not be looked at", async () => {
    await using world = await connectedWorld();
    await world.core().operations.create(admin, create);
    world.host.networks.faults.add("repair");
    await world.core().reconcile();
    expect(world.host.networks.trace.at(-1)).toBe("adopt one");

    world.host.networks.faults.clear();
    world.host.networks.interfaces.clear();
    await world.core().reconcile();
    expect(world.host.networks.trace.at(-1)).toBe("adopt ");
  });
});
