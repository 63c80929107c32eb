// What is told of a host: how many addresses are left, when that is few, and what of networks is there.
import { expect, test } from "bun:test";
import { NetworkWorld } from "./testing/world.ts";

test.each([
  [4096, 0, 0, false],
  [4096, 3891, 95, false],
  [4096, 3892, 95, true],
  [4096, 4096, 100, true],
  [8, 7, 87.5, false],
  [8, 8, 100, true],
  [0, 0, 100, true],
])("of %d blocks of addresses %d are leased", async (capacity, allocated, utilizationPercent, nearExhaustion) => {
  const { views } = new NetworkWorld(undefined, { addresses: () => ({ capacity, allocated, quarantined: 0 }) })
    .services;
  const free = capacity - allocated;
  expect(views.ipam()).toEqual({ capacity, allocated, quarantined: 0, free, utilizationPercent, nearExhaustion });
  // Somebody has to do something about it before there are none.
  expect((await views.health()).notes).toEqual(nearExhaustion ? ["few blocks of addresses are left"] : []);
});

test("what of networks is on a host is told as it is, whichever dataplane decides", async () => {
  const world = new NetworkWorld(undefined, { mode: "legacy" });
  for (const isThere of [true, false]) {
    world.presence = { pinRootPresent: isThere, bpffsPresent: isThere, ciliumSocketPresent: isThere };
    expect(await world.services.views.health()).toMatchObject({ mode: "legacy", ok: true, ...world.presence });
  }
});

test.each(["ebpf", "legacy"] as const)("with %s what has lost its attachment is not in force", async (mode) => {
  const world = new NetworkWorld(undefined, { mode });
  await world.connect("a");
  const isSynced = async () => (await world.services.views.status("a")).isSynced;
  expect(await isSynced()).toBe(true);
  const attachment = await world.dataplane.attachment("a");
  // Its record says what was in force.
  world.dataplane.attachment = async () => ({ ...attachment, attached: false });
  expect(await isSynced()).toBe(false);
});
