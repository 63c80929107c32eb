// What sandboxes use of the host and may use, on a host in memory.
import { expect, test } from "bun:test";
import { admin, World } from "../testing/world.ts";

async function machine(hasResources = true) {
  const world = await World.create();
  world.host.hasResources = hasResources;
  const core = world.core();
  await core.operations.create(admin, { id: "vm", backend: "fake", backendRequest: {} });
  return { world, core, [Symbol.asyncDispose]: () => world[Symbol.asyncDispose]() };
}

test("limits reach the backend, and what is used is told, while the sandbox runs or is paused", async () => {
  await using vm = await machine();
  const { resources, operations } = vm.core;
  const limits = {
    cpuQuotaPercent: 50,
    memoryMaxBytes: 1 << 20,
    ioWeight: 10,
    pidsMax: 5,
    cpusetCpus: "0-1,3",
    diskOps: 0,
  };
  expect(await resources.limitResources(admin, "vm", limits)).toMatchObject({ cpuUsageUs: 7, memoryBytes: 4096 });
  expect(vm.world.host.limits).toEqual([limits]);
  await operations.pause(admin, "vm");
  expect(await resources.cpuset(admin, "vm")).toEqual({ cpus: "0-1", mems: "0" });
  expect(await resources.memoryUse(admin, "vm")).toMatchObject({ configuredMib: 512, usage: { rssKib: 4 } });
  await expect(resources.pressure(admin, "vm")).rejects.toMatchObject({ code: "CAPABILITY_MISSING" });
  await operations.resume(admin, "vm");
  await operations.stop(admin, "vm");
  await expect(resources.resourceUse(admin, "vm")).rejects.toMatchObject({ code: "INVALID_STATE" });
  await expect(resources.limitResources(admin, "vm", limits)).rejects.toMatchObject({ code: "INVALID_STATE" });
  expect(await resources.memoryUse(admin, "vm")).toEqual({ configuredMib: 512, usage: null });
});

test("limits are kept, added to and set again at every start, and without them nothing starts", async () => {
  await using vm = await machine();
  const { resources } = vm.core;
  await resources.limitResources(admin, "vm", { pidsMax: 5, ioWeight: 10, diskMbit: 8 });
  await resources.limitResources(admin, "vm", { pidsMax: 6, ioWeight: undefined, diskMbit: 0 });
  await vm.core.shutdown(100);
  const next = vm.world.core();
  await next.reconcile();
  vm.world.host.limits.length = 0;
  await next.operations.restart(admin, "vm");
  expect(vm.world.host.limits).toEqual([{ pidsMax: 6, ioWeight: 10, diskMbit: 0 }]);
  await next.operations.stop(admin, "vm");
  vm.world.host.hasResources = false;
  const unbounded = vm.world.core();
  await unbounded.reconcile();
  await expect(unbounded.operations.start(admin, "vm")).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
  expect(vm.world.host.processes.size).toBe(0);
});

test.each([
  [{ cpuQuotaPercent: 0 }],
  [{ memoryMaxBytes: 4096 }],
  [{ ioWeight: 10_001 }],
  [{ pidsMax: 1.5 }],
  [{ diskMbit: -1 }],
  [{ diskOps: 10_000_001 }],
  [{ cpusetCpus: "" }],
  [{ cpusetCpus: "0-1\n" }],
  [{ cpusetCpus: "../x" }],
  [{ cpusetCpus: "0,".repeat(300) }],
])("%j is refused", async (limits) => {
  await using vm = await machine();
  await expect(vm.core.resources.limitResources(admin, "vm", limits)).rejects.toMatchObject({ code: "BAD_REQUEST" });
  expect(vm.world.host.limits).toEqual([]);
});

test("a backend without them says so, and strangers see nothing", async () => {
  await using vm = await machine(false);
  await expect(vm.core.resources.resourceUse(admin, "vm")).rejects.toMatchObject({ code: "NOT_SUPPORTED" });
  const stranger = { ...admin, tenant: "other" };
  await expect(vm.core.resources.memoryUse(stranger, "vm")).rejects.toMatchObject({ code: "SANDBOX_NOT_FOUND" });
});
