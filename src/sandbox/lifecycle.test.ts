import { describe, expect, test } from "bun:test";
import { eventOf, isLegalMove, PHASES, type Phase, stateOf, STATES, STATUSES, statusOf } from "./lifecycle.ts";

/** Written out by hand, row = from, so that a slip in the table shows here. */
const LEGAL: Record<Phase, readonly Phase[]> = {
  creating: ["creating", "starting", "failed", "removing"],
  starting: ["starting", "ready", "stopping", "failed", "removing"],
  ready: ["ready", "stopping", "pausing", "failed", "removing"],
  stopping: ["stopping", "stopped", "failed", "removing"],
  stopped: ["stopped", "starting", "removing"],
  failed: ["failed", "starting", "removing"],
  pausing: ["pausing", "paused", "ready", "failed", "removing"],
  paused: ["paused", "resuming", "failed", "removing"],
  resuming: ["resuming", "paused", "ready", "failed", "removing"],
  removing: ["removing"],
};

describe("moves", () => {
  for (const from of PHASES) {
    for (const to of PHASES) {
      test(`${from} to ${to}`, () => {
        expect(isLegalMove(from, to)).toBe(LEGAL[from].includes(to));
      });
    }
  }

  test("there are ten phases, and each can be left for removing", () => {
    expect(PHASES).toHaveLength(10);
    for (const phase of PHASES) expect(isLegalMove(phase, "removing")).toBe(true);
  });
});

describe("words on the wire", () => {
  test("running is ready with a command in it", () => {
    expect(stateOf("ready", 0, false)).toBe("ready");
    expect(stateOf("ready", 2, false)).toBe("running");
  });

  test("a removal that got stuck shows as failed", () => {
    expect(stateOf("removing", 0, false)).toBe("stopping");
    expect(stateOf("removing", 0, true)).toBe("failed");
  });

  test("eight states map to five status words", () => {
    const mapping = Object.fromEntries(STATES.map((state) => [state, statusOf(state)]));
    expect(mapping).toEqual({
      starting: "creating",
      ready: "running",
      running: "running",
      stopping: "running",
      stopped: "stopped",
      failed: "failed",
      pausing: "paused",
      paused: "paused",
    });
    expect(new Set(Object.values(mapping))).toEqual(new Set(STATUSES));
  });

  test("events", () => {
    expect(eventOf(null, "creating")).toBe("sandbox.created");
    expect(eventOf("starting", "ready")).toBe("sandbox.ready");
    expect(eventOf("resuming", "ready")).toBe("sandbox.resumed");
    expect(eventOf("ready", "ready")).toBeNull();
    expect(eventOf("creating", "starting")).toBeNull();
    expect(eventOf("stopping", "stopped")).toBe("sandbox.stopped");
  });
});
