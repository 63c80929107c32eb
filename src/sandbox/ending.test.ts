import { describe, expect, test } from "bun:test";
import { admin, World } from "./testing/world.ts";

async function setUp(world: World) {
  const core = world.core();
  await core.operations.create(admin, { backend: "fake", backendRequest: {}, id: "one" });
  const [shortName = ""] = [...world.host.processes.keys()];
  world.host.faults.add("channel");
  return { operations: core.operations, shortName };
}

describe("a guest that falls silent", () => {
  test("because its sandbox ended is reported as the end, also when that news comes later", async () => {
    await using world = await World.create();
    const { operations, shortName } = await setUp(world);
    world.host.endGate = Bun.sleep(50);
    const calls = [
      operations.process(admin, "one", { command: "exit 0" }),
      operations.readFile(admin, "one", "f"),
      operations.writeFile(admin, "one", "f", new Uint8Array(), 0o644),
      operations.baseline(admin, "one", ["/"]),
      operations.ping(admin, "one"),
    ].map((call) => call.catch((error: unknown) => error));
    world.host.kill(shortName, "out of memory");
    for (const error of await Promise.all(calls)) {
      expect(error).toMatchObject({ code: "SANDBOX_GONE", message: "the sandbox ended meanwhile: out of memory" });
    }
  });

  test("because its sandbox was stopped says that it was", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    const call = operations.ping(admin, "one").catch((error: unknown) => error);
    await operations.stop(admin, "one");
    expect(await call).toMatchObject({ code: "SANDBOX_GONE" });
  });

  test("while its sandbox goes on is not reachable", async () => {
    await using world = await World.create();
    const { operations } = await setUp(world);
    await expect(operations.ping(admin, "one")).rejects.toMatchObject({ code: "GUEST_UNREACHABLE" });
    expect(operations.get(admin, "one").state).toBe("ready");
  });
});
