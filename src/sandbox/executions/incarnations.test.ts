// Executions of a sandbox that is put back to an earlier state, in place or by a launch.
import { expect, test } from "bun:test";
import { admin } from "../testing/world.ts";
import { drain, ExecutionWorld, SANDBOX, take, until } from "../testing/execution-world.ts";
import { FakeExecution, type FakeExecutions } from "../testing/fake-executions.ts";

const ALL = { stdout: 0, stderr: 0 };

/** A world whose sandbox has the snapshot `then`, before which `kept` was started. */
async function world(restores: "in-place" | "relaunch"): Promise<ExecutionWorld> {
  const at = await ExecutionWorld.create(restores);
  const kept = await at.startWriting("kept", "abcd");
  await until(async () => (await at.view("kept")).stdoutLength === 4, "the output is here");
  await at.core.snapshots.takeSnapshot(admin, SANDBOX, "then");
  // What the guest knew then: four bytes of output, which the host had, and no input.
  at.world.host.rewind = (guest: FakeExecutions) => {
    const again = new FakeExecution(kept.request);
    again.stdout.base = again.stdout.end = 4;
    guest.all.clear();
    guest.all.set("kept", again);
  };
  return at;
}

test("what runs across a return to an earlier state goes on from there, and its readers are told", async () => {
  await using at = await world("in-place");
  await at.stdin("kept", 0, "input");
  await at.guest.get("kept").write("stdout", "undone");
  const reader = await at.attach("kept");
  expect(await take(reader, 1)).toEqual(["stdout 0 abcdundone"]);
  expect(await at.view("kept")).toMatchObject({ incarnation: 0, stdin: { bytesWritten: 5 } });
  await at.core.snapshots.restoreSnapshot(admin, SANDBOX, "then");
  expect(await drain(reader)).toEqual([expect.stringMatching(/^error REVERTED/)]);
  expect(await at.view("kept")).toMatchObject({ status: "running", incarnation: 1, stdin: { bytesWritten: 0 } });
  await at.guest.get("kept").write("stdout", "anew");
  expect(await take(await at.attach("kept", { from: ALL, incarnation: 1 }), 1)).toEqual(["stdout 4 anew"]);
  await expect(at.attach("kept", { from: ALL, incarnation: 0 })).rejects.toMatchObject({ code: "REVERTED" });
  expect(at.core.operations.get(admin, SANDBOX).state).toBe("running");
  // Another agent knows all of it.
  await at.restart();
  expect(await take(await at.attach("kept", { from: ALL, incarnation: 1 }), 1)).toEqual(["stdout 4 anew"]);
  at.guest.get("kept").exit(0);
  expect(await at.core.executions.waitExecution(admin, SANDBOX, "kept", 5000)).toMatchObject({ exitCode: 0 });
  await until(() => at.core.operations.get(admin, SANDBOX).state === "ready", "nothing runs any more");
});

test("what was started since is over, and what it wrote can be read", async () => {
  await using at = await world("in-place");
  await at.startWriting("since", "undone");
  const reader = await at.attach("since");
  expect(await take(reader, 1)).toEqual(["stdout 0 undone"]);
  const over = await at.start({ id: "over", command: "a" });
  over.exit(3);
  await until(async () => (await at.view("over")).status === "exited", "the exit is seen");
  await at.core.snapshots.restoreSnapshot(admin, SANDBOX, "then");
  expect(await drain(reader)).toEqual([expect.stringMatching(/^error REVERTED/)]);
  expect(await at.view("since")).toMatchObject({ status: "exited", exitCode: null });
  expect((await at.view("since")).error).toContain("earlier state");
  expect(await drain(await at.attach("since"))).toEqual([
    "stdout 0 undone",
    expect.stringMatching(/^error REVERTED/) as unknown as string,
  ]);
  expect(await drain(await at.attach("over"))).toEqual(["exited 3"]);
  await at.restart();
  expect(await drain(await at.attach("over"))).toEqual(["exited 3"]);
  expect((await drain(await at.attach("since"))).at(-1)).toStartWith("error REVERTED");
});

test("what has ended since runs again", async () => {
  await using at = await world("in-place");
  at.guest.get("kept").exit(7);
  await until(async () => (await at.view("kept")).status === "exited", "the exit is seen");
  await at.core.snapshots.restoreSnapshot(admin, SANDBOX, "then");
  expect(await at.view("kept")).toMatchObject({ status: "running", exitCode: null, incarnation: 1 });
  at.guest.get("kept").exit(8);
  expect(await at.core.executions.waitExecution(admin, SANDBOX, "kept", 5000)).toMatchObject({ exitCode: 8 });
  expect(await drain(await at.attach("kept"))).toEqual(["exited 8"]);
});

test("a launch from a snapshot joins what runs in it", async () => {
  await using at = await world("relaunch");
  await at.core.operations.stop(admin, SANDBOX);
  expect(await at.view("kept")).toMatchObject({ status: "exited", error: "sandbox stopped" });
  await at.core.snapshots.startFromSnapshot(admin, SANDBOX, "then");
  expect(await at.view("kept")).toMatchObject({ status: "running", incarnation: 1 });
  await at.guest.get("kept").write("stdout", "anew");
  expect(await take(await at.attach("kept"), 1)).toEqual(["stdout 4 anew"]);
});

test("nothing starts while the guest is being put back, and what cannot be put back goes on", async () => {
  await using at = await world("in-place");
  at.world.host.faults.add("restore");
  const reader = await at.attach("kept");
  expect(await take(reader, 1)).toEqual(["stdout 0 abcd"]);
  const restoring = at.core.snapshots.restoreSnapshot(admin, SANDBOX, "then");
  restoring.catch(() => undefined);
  expect(await drain(reader)).toEqual([expect.stringMatching(/^error REVERTED/)]);
  await expect(restoring).rejects.toMatchObject({ code: "MONITOR_ERROR" });
  // The guest gives what nobody had confirmed, and what comes.
  at.guest.get("kept").acknowledge({ stdout: 4, stderr: 0 });
  await at.guest.get("kept").write("stdout", "efgh");
  at.guest.get("kept").exit(0);
  const lines = await drain(await at.attach("kept", { incarnation: 1 }));
  expect(lines.slice(0, -1).join(" ")).toEndWith("efgh");
  expect(lines.at(-1)).toBe("exited 0");
});

test("an agent that ends in the middle leaves another one to join them", async () => {
  await using at = await world("in-place");
  await at.startWriting("since", "undone");
  const { host } = at.world;
  const gate = Promise.withResolvers<void>();
  const { rewind } = host;
  host.rewind = (guest) => {
    rewind(guest);
    // The agent vanishes here: it never learns that the guest is back.
    host.faults.add("channel");
    gate.resolve();
  };
  const restoring = at.core.snapshots.restoreSnapshot(admin, SANDBOX, "then");
  restoring.catch(() => undefined);
  await gate.promise;
  host.faults.delete("channel");
  await at.restart({ kill: true });
  expect(await at.view("kept")).toMatchObject({ status: "running", incarnation: 1 });
  await at.guest.get("kept").write("stdout", "anew");
  expect(await take(await at.attach("kept"), 1)).toEqual(["stdout 4 anew"]);
  expect(await at.view("since")).toMatchObject({ status: "exited", exitCode: null });
});
