import { describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { Actor } from "./actor.ts";

describe("actor", () => {
  test("runs one command at a time, in order, whatever the earlier ones did", async () => {
    const actor = new Actor();
    const trace: string[] = [];
    const step =
      (name: string, fails = false) =>
      async () => {
        trace.push(`${name} in`);
        await Bun.sleep(2);
        trace.push(`${name} out`);
        if (fails) throw new Error(name);
      };
    const outcomes = await Promise.allSettled([
      actor.run("a", step("a", true)),
      actor.run("b", step("b")),
      actor.tell("c", step("c")),
    ]);
    expect(trace).toEqual(["a in", "a out", "b in", "b out", "c in", "c out"]);
    expect(outcomes.map(({ status }) => status)).toEqual(["rejected", "fulfilled", "fulfilled"]);
  });

  test("a repeated command joins the last one, also its failure", async () => {
    const actor = new Actor();
    let runs = 0;
    const work = async () => {
      await Bun.sleep(2);
      runs += 1;
      throw new Error("no");
    };
    const outcomes = await Promise.allSettled([actor.join("stop", work), actor.join("stop", work)]);
    expect(runs).toBe(1);
    expect(outcomes.every(({ status }) => status === "rejected")).toBe(true);
    await actor.join("stop", async () => {
      runs += 1;
    });
    expect(runs).toBe(2);
  });

  test("does not join one that another command follows", async () => {
    const actor = new Actor();
    const trace: string[] = [];
    const note = (name: string) => async () => {
      trace.push(name);
    };
    await Promise.all([
      actor.join("stop", note("stop 1")),
      actor.join("start", note("start")),
      actor.join("stop", note("stop 2")),
    ]);
    expect(trace).toEqual(["stop 1", "start", "stop 2"]);
  });

  test("is bounded, but never refuses what the agent itself must do", async () => {
    const actor = new Actor();
    const gate = Promise.withResolvers<void>();
    const waiting = Array.from({ length: limits.mailboxMax }, () => actor.run("x", () => gate.promise));
    await expect(actor.run("x", async () => undefined)).rejects.toMatchObject({ code: "SANDBOX_BUSY" });
    const told = actor.tell("ended", async () => "told");
    gate.resolve();
    await Promise.all(waiting);
    expect(await told).toBe("told");
  });

  test("idle waits for what is in the mailbox", async () => {
    const actor = new Actor();
    let done = false;
    void actor.run("slow", async () => {
      await Bun.sleep(5);
      done = true;
    });
    await actor.idle();
    expect(done).toBe(true);
  });
});
