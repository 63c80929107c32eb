// The agent dies at every passing of every crash point of every operation; the next one must make the world true again.
import { describe, expect, test } from "bun:test";
import type { SandboxCore } from "./core.ts";
import { CRASH_POINTS, type CrashHook, type CrashPoint } from "./crash-points.ts";
import type { FakeHost } from "./testing/fake-host.ts";
import { admin, NOTHING_HELD, World } from "./testing/world.ts";

const ID = "one";
const PASSES_MAX = 40;

type Outcome = "absent" | "ready" | "stopped" | "failed" | "paused";

interface Scenario {
  readonly name: string;
  /** Of another host than the usual one. */
  readonly host?: (host: FakeHost) => void;
  readonly prepare?: (core: SandboxCore, world: World) => Promise<unknown>;
  readonly act: (core: SandboxCore, world: World) => Promise<unknown>;
  /** What the sandbox may be after the crash and a restart. */
  readonly outcomes: readonly Outcome[];
}

const create = (core: SandboxCore): Promise<unknown> =>
  core.operations.create(admin, {
    id: ID,
    backend: "fake",
    backendRequest: {},
    idempotency: { hash: "h", bodyHash: "b", reply: () => ({ status: 201, body: "" }) },
  });

const createWithFile = async (core: SandboxCore): Promise<void> => {
  await create(core);
  await core.operations.writeFile(admin, ID, "kept", Buffer.from("kept"), 0o644);
};

const connecting = (host: FakeHost): void => {
  host.connects = true;
};

const scenarios: readonly Scenario[] = [
  { name: "create", act: create, outcomes: ["absent", "ready"] },
  {
    name: "create that fails",
    act: async (core, world) => {
      world.host.faults.add("launch");
      await create(core).catch(() => undefined);
    },
    outcomes: ["absent"],
  },
  {
    name: "remove",
    prepare: createWithFile,
    act: async (core) => {
      await core.operations.remove(admin, ID);
      core.startKeepers();
      await Bun.sleep(20);
      await core.shutdown(100);
    },
    outcomes: ["absent", "ready"],
  },
  {
    name: "stop",
    prepare: createWithFile,
    act: (core) => core.operations.stop(admin, ID),
    outcomes: ["ready", "stopped"],
  },
  {
    name: "start",
    prepare: async (core) => {
      await createWithFile(core);
      await core.operations.stop(admin, ID);
    },
    act: (core) => core.operations.start(admin, ID),
    outcomes: ["stopped", "ready"],
  },
  {
    name: "pause",
    prepare: createWithFile,
    act: (core) => core.operations.pause(admin, ID),
    outcomes: ["ready", "paused"],
  },
  {
    name: "resume",
    prepare: async (core) => {
      await createWithFile(core);
      await core.operations.pause(admin, ID);
    },
    act: (core) => core.operations.resume(admin, ID),
    outcomes: ["ready", "paused"],
  },
  {
    name: "create with a network",
    host: connecting,
    act: create,
    outcomes: ["absent", "ready"],
  },
  {
    name: "create whose network fails",
    host: (host) => {
      connecting(host);
      host.networks.faults.add("up");
    },
    act: (core) => create(core).catch(() => undefined),
    outcomes: ["absent"],
  },
  {
    name: "restart with a network",
    host: connecting,
    prepare: createWithFile,
    act: (core) => core.operations.restart(admin, ID),
    outcomes: ["ready", "stopped"],
  },
  {
    name: "remove with a network",
    host: connecting,
    prepare: createWithFile,
    act: (core) => core.operations.remove(admin, ID),
    outcomes: ["absent", "ready"],
  },
  {
    name: "an instance that ends",
    prepare: createWithFile,
    act: async (core, world) => {
      world.host.kill(String(world.state.tables.records[ID]?.body.shortName), "killed");
      await Bun.sleep(2);
      await core.operations.update(admin, ID, {});
    },
    outcomes: ["failed"],
  },
  {
    name: "baseline",
    prepare: createWithFile,
    act: (core) => core.operations.baseline(admin, ID, ["/"]),
    outcomes: ["ready"],
  },
  {
    name: "dry-run",
    prepare: createWithFile,
    act: (core) => core.operations.dryRun(admin, ID, { command: "write /new x" }),
    outcomes: ["ready"],
  },
  {
    name: "dry-run by snapshot",
    host: (host) => {
      host.restores = "relaunch";
    },
    prepare: createWithFile,
    act: (core) => core.operations.dryRun(admin, ID, { command: "write /new x", paths: ["/"] }),
    // Cut while it is being launched again, it is put back by the next start.
    outcomes: ["ready", "failed"],
  },
];

/** Prepares a scenario, and does it with a hook at each point that it passes from then on. */
async function act(world: World, scenario: Scenario, crashPoint: CrashHook): Promise<void> {
  let armed = false;
  scenario.host?.(world.host);
  const core = world.core({ crashPoint: (point) => (armed ? crashPoint(point) : undefined) });
  await scenario.prepare?.(core, world);
  armed = true;
  await scenario.act(core, world);
}

/** Runs a scenario with a crash at the n-th passing of any point; answers the point, or null when it went through. */
async function crashOnce(world: World, scenario: Scenario, nth: number): Promise<CrashPoint | null> {
  const { promise: crashed, resolve } = Promise.withResolvers<CrashPoint>();
  let passed = 0;
  const through = act(world, scenario, async (point) => {
    passed += 1;
    if (passed < nth) return;
    resolve(point);
    await new Promise(() => undefined);
  });
  const point = await Promise.race([crashed, through.then(() => null)]);
  world.killAgents();
  world.host.faults.clear();
  world.host.networks.faults.clear();
  return point;
}

function outcomeOf(core: SandboxCore): Outcome {
  if (!core.operations.visible(admin, ID)) return "absent";
  return core.operations.get(admin, ID).state as Outcome;
}

/** A machine that was cut while a dry-run was undone is as it was once it is started. */
async function settled(world: World, core: SandboxCore, outcome: Outcome): Promise<Outcome> {
  const { resources } = await world.holdings();
  if (outcome !== "failed" || !resources.some((row) => row.startsWith("dry-run-snapshot"))) return outcome;
  await core.operations.start(admin, ID);
  return outcomeOf(core);
}

/** Nothing is held that the record does not account for, and everything that it accounts for is there. */
async function assertTrue(world: World, core: SandboxCore, found: Outcome): Promise<void> {
  const outcome = await settled(world, core, found);
  const held = await world.holdings();
  const running = outcome === "ready" || outcome === "paused";
  if (outcome === "absent") {
    expect(held).toEqual(NOTHING_HELD);
    return;
  }
  expect(held.volumes).toEqual([ID]);
  expect(held.instances).toEqual([ID]);
  const { connects, networks } = world.host;
  expect(held.leases).toHaveLength(connects ? 2 : 1);
  expect(held.processes).toHaveLength(running ? 1 : 0);
  expect(held.groups).toHaveLength(running ? 1 : 0);
  for (const process of world.host.processes.values()) expect(process.paused).toBe(outcome === "paused");
  expect(held.resources).toHaveLength((running ? 5 : 3) + (running && connects ? 2 : 0));
  expect([...networks.interfaces.values()]).toMatchObject(
    running && connects ? [{ isUp: true, isUnderPolicy: true }] : [],
  );
  if (outcome === "ready") {
    const written = await core.operations.readFile(admin, ID, "kept").catch(() => null);
    if (written !== null) expect(Buffer.from(written.content).toString()).toBe("kept");
    expect(world.host.volumes.get(ID)?.has("/new")).toBe(false);
    expect(world.host.snapshots.get(ID)?.size ?? 0).toBe(0);
    await core.operations.ping(admin, ID);
  }
}

describe.each([...scenarios])("$name", (scenario) => {
  test("leaves a true world wherever the agent dies", async () => {
    for (let nth = 1; ; nth += 1) {
      expect(nth).toBeLessThan(PASSES_MAX);
      await using world = await World.create();
      const point = await crashOnce(world, scenario, nth);
      if (point === null) return;
      const next = world.core();
      await next.reconcile();
      const outcome = outcomeOf(next);
      expect(`${point}: ${outcome}`).toBe(`${point}: ${scenario.outcomes.find((word) => word === outcome) ?? "?"}`);
      await assertTrue(world, next, outcome);
      expect(Object.values(world.state.tables.idempotency).filter(({ reply }) => reply === null)).toEqual([]);
      // And the world can go on: whatever is left can be removed, and the id used again.
      if (outcome !== "absent") await next.operations.remove(admin, ID);
      await create(next).catch((error: unknown) => {
        if ((error as { code?: string }).code !== "IDEMPOTENCY_IN_FLIGHT") throw error;
      });
    }
  });

  test("a second crash, in the middle of reconciling, changes nothing about that", async () => {
    for (let nth = 1; ; nth += 3) {
      await using world = await World.create();
      if ((await crashOnce(world, scenario, nth)) === null) return;
      const { promise: crashed, resolve } = Promise.withResolvers<void>();
      let passed = 0;
      const second = world.core({
        crashPoint: async () => {
          passed += 1;
          if (passed < 2) return;
          resolve();
          await new Promise(() => undefined);
        },
      });
      await Promise.race([crashed, second.reconcile()]);
      const third = world.core();
      await third.reconcile();
      const outcome = outcomeOf(third);
      expect(scenario.outcomes).toContain(outcome);
      await assertTrue(world, third, outcome);
    }
  });
});

test("every crash point is passed by a scenario", async () => {
  const passed = new Set<CrashPoint>();
  for (const scenario of scenarios) {
    await using world = await World.create();
    await act(world, scenario, (point) => void passed.add(point));
  }
  expect(CRASH_POINTS.filter((point) => !passed.has(point))).toEqual([]);
});
