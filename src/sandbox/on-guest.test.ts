// Calls that reach the guest of a paused sandbox resume it once, unless they decline; what is kept of executions is read
// without.
import { describe, expect, test } from "bun:test";
import type { SandboxCore } from "./core.ts";
import type { Caller } from "./operations.ts";
import { drain, ExecutionWorld, SANDBOX, until } from "./testing/execution-world.ts";
import { admin } from "./testing/world.ts";

const declining: Caller = { ...admin, declinesResume: true };
const path = Buffer.from("/f");

/** A sandbox with an execution that has ended, which is then paused. */
async function paused(): Promise<ExecutionWorld> {
  const at = await ExecutionWorld.create();
  const process = await at.start({ id: "e", command: "x" });
  await process.write("stdout", "kept");
  process.exit(3);
  await until(async () => (await at.view("e")).status === "exited", "the exit is seen");
  await at.core.operations.pause(admin, SANDBOX);
  return at;
}

const stateOf = (at: ExecutionWorld) => at.core.operations.get(admin, SANDBOX).state;
const resumes = (at: ExecutionWorld) => at.world.events.filter(({ action }) => action === "sandbox.resumed");

type Call = (core: SandboxCore, caller: Caller) => Promise<unknown>;

const CALLS: readonly (readonly [string, Call])[] = [
  ["ping", ({ operations }, caller) => operations.ping(caller, SANDBOX)],
  ["process", ({ operations }, caller) => operations.process(caller, SANDBOX, { command: "exit 0" })],
  ["readFile", ({ operations }, caller) => operations.readFile(caller, SANDBOX, "f")],
  ["writeFile", ({ operations }, caller) => operations.writeFile(caller, SANDBOX, "f", path, 0o644)],
  ["baseline", ({ operations }, caller) => operations.baseline(caller, SANDBOX, ["/"])],
  ["changes", ({ operations }, caller) => operations.changes(caller, SANDBOX)],
  ["dryRun", ({ operations }, caller) => operations.dryRun(caller, SANDBOX, { command: "exit 0" })],
  ["stat", ({ files }, caller) => files.stat(caller, SANDBOX, path)],
  ["list", ({ files }, caller) => files.list(caller, SANDBOX, path)],
  ["watch", ({ files }, caller) => files.watch(caller, SANDBOX, path, false)],
  ["start", ({ executions }, caller) => executions.startExecution(caller, SANDBOX, { command: "x" })],
  ["signal", ({ executions }, caller) => executions.signalExecution(caller, SANDBOX, "e", 15)],
];

describe("a paused sandbox", () => {
  test.each(CALLS)("is resumed for %s, and stays paused where that is declined", async (_, call) => {
    await using at = await paused();
    const refusal = await call(at.core, declining).then(
      () => null,
      (error: { code: string }) => error.code,
    );
    // Whether a signal comes too late is known without the guest.
    expect(["SANDBOX_PAUSED", "EXECUTION_EXITED"]).toContain(refusal ?? "none");
    expect(stateOf(at)).toBe("paused");
    await call(at.core, admin).catch(() => undefined);
    expect(stateOf(at)).not.toBe("paused");
    expect(resumes(at)).toMatchObject([{ attributes: { reason: "auto_resume" } }]);
  });

  test("is resumed once for many calls at once, also while it is only being paused", async () => {
    await using at = await ExecutionWorld.create();
    const { operations } = at.core;
    const { promise, resolve: freeze } = Promise.withResolvers<void>();
    at.world.host.pauseGate = promise;
    const pausing = operations.pause(admin, SANDBOX);
    await until(() => stateOf(at) === "pausing", "it is being paused");
    const calls = Array.from({ length: 50 }, () => operations.process(admin, SANDBOX, { command: "exit 4" }));
    freeze();
    await pausing;
    expect((await Promise.all(calls)).map(({ exitCode }) => exitCode)).toEqual(calls.map(() => 4));
    expect(resumes(at)).toHaveLength(1);
  });

  test("that cannot be resumed says so, and stays as it was", async () => {
    await using at = await paused();
    const before = at.core.operations.get(admin, SANDBOX).paused_at;
    at.world.host.faults.add("resume");
    await expect(at.core.operations.ping(admin, SANDBOX)).rejects.toThrow(/^AutoResume on request: /);
    expect(at.core.operations.get(admin, SANDBOX)).toMatchObject({ state: "paused", paused_at: before });
    at.world.host.faults.delete("resume");
    await at.core.operations.ping(admin, SANDBOX);
    expect(stateOf(at)).toBe("ready");
  });

  test("is found by the next agent at once, and goes on with what ran in it", async () => {
    await using at = await ExecutionWorld.create();
    const process = await at.start({ id: "e", command: "x" });
    await process.write("stdout", "before");
    await until(async () => (await at.view("e")).stdoutLength === 6, "the output is here");
    await at.core.operations.pause(admin, SANDBOX, { force: true });
    const began = performance.now();
    await at.restart({ kill: true });
    expect(performance.now() - began).toBeLessThan(2_000);
    expect(stateOf(at)).toBe("paused");
    expect(await at.view("e")).toMatchObject({ status: "running", stdoutLength: 6 });
    await at.core.operations.ping(admin, SANDBOX);
    expect(stateOf(at)).toBe("running");
    await process.write("stdout", " after");
    process.exit(5);
    await until(async () => (await at.view("e")).status === "exited", "the exit is seen");
    const [end, ...output] = (await drain(await at.attach("e"))).reverse();
    const text = output.reverse().map((line) => line.replace(/^stdout \d+ /, ""));
    expect([text.join(""), end]).toEqual(["before after", "exited 5"]);
    expect(stateOf(at)).toBe("ready");
  });

  test("shows what is kept of its executions without being resumed", async () => {
    await using at = await paused();
    expect(await at.view("e")).toMatchObject({ status: "exited", exitCode: 3 });
    expect(await at.core.executions.executions(admin, SANDBOX)).toHaveLength(1);
    expect(await at.core.executions.waitExecution(admin, SANDBOX, "e", 0)).toMatchObject({ exitCode: 3 });
    expect(await drain(await at.attach("e"))).toEqual(["stdout 0 kept", "exited 3"]);
    expect(at.core.operations.list(admin, {})).toHaveLength(1);
    expect(stateOf(at)).toBe("paused");
  });
});
