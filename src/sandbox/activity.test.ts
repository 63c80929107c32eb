// Busy and idle: told once for however many commands at once, with the end of the last one, and not by a sandbox that ends.
import { describe, expect, test } from "bun:test";
import { AgentError } from "../errors/agent-error.ts";
import { ExecutionWorld, SANDBOX, until } from "./testing/execution-world.ts";
import { admin } from "./testing/world.ts";

/** What was told of commands, in order. */
const told = (at: ExecutionWorld): string[] =>
  at.world.events.map(({ action }) => action).filter((action) => /running|idle/.test(action));

const lastTold = (at: ExecutionWorld) => at.world.events.findLast(({ action }) => action === "sandbox.idle");

describe("a sandbox", () => {
  test("is busy from its first command to the end of its last, of whatever kind they are", async () => {
    await using at = await ExecutionWorld.create();
    const first = await at.start({ id: "first", command: "x" });
    const second = await at.start({ id: "second", command: "x" });
    expect((await at.core.operations.process(admin, SANDBOX, { command: "exit 5" })).exitCode).toBe(5);
    first.exit(1);
    await until(async () => (await at.view("first")).status === "exited", "the first has ended");
    await until(() => at.world.events.some(({ action }) => action === "exec.exited"), "its end is told");
    expect(told(at)).toEqual(["sandbox.running"]);
    second.exit(7);
    await until(() => told(at).length === 2, "it is idle");
    expect(lastTold(at)).toMatchObject({ action: "sandbox.idle", attributes: { exit_code: 7 } });
    await at.core.operations.process(admin, SANDBOX, { command: "exit 6" });
    expect(told(at)).toEqual(["sandbox.running", "sandbox.idle", "sandbox.running", "sandbox.idle"]);
    expect(lastTold(at)?.attributes).toEqual({ exit_code: 6 });
  });

  test("is idle with the end of its last command, though another's is not told yet", async () => {
    await using at = await ExecutionWorld.create();
    const first = await at.start({ id: "first", command: "x" });
    const second = await at.start({ id: "second", command: "x" });
    first.exit(1);
    second.exit(7);
    await until(() => told(at).length === 2, "it is idle");
    expect(lastTold(at)?.attributes).toEqual({ exit_code: 7 });
  });

  test("is idle after a command that did not start, or that a signal ended", async () => {
    await using at = await ExecutionWorld.create();
    at.guest.startFault = { error: new AgentError("PROGRAM_NOT_FOUND"), afterStart: false };
    await expect(at.start({ id: "none", argv: ["none"] })).rejects.toMatchObject({ code: "PROGRAM_NOT_FOUND" });
    expect(lastTold(at)?.attributes.error).toContain("no such program");
    const process = await at.start({ id: "killed", command: "x" });
    process.exit(null, { signal: 9 });
    await until(() => told(at).length === 4, "it is idle");
    expect(lastTold(at)?.attributes).toEqual({ exit_code: 137, signal: 9 });
  });

  test("that is stopped tells its stop and not that it is idle", async () => {
    await using at = await ExecutionWorld.create();
    await at.start({ id: "e", command: "x" });
    await at.core.operations.stop(admin, SANDBOX);
    await until(() => at.world.events.some(({ action }) => action === "exec.exited"), "the end is told");
    await at.core.operations.start(admin, SANDBOX);
    const again = await at.start({ id: "f", command: "x" });
    again.exit(0);
    await until(() => told(at).includes("sandbox.idle"), "it is idle");
    expect(told(at)).toEqual(["sandbox.running", "sandbox.running", "sandbox.idle"]);
  });
});
