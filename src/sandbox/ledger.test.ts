import { describe, expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import type { Release } from "../contracts/resource.ts";
import type { CrashPoint } from "./crash-points.ts";
import { Ledger } from "./ledger.ts";
import { MemoryState } from "./testing/memory-store.ts";
import { silentLog } from "../telemetry/silent-log.ts";

function setUp(releases: Record<string, Release>) {
  const state = new MemoryState();
  const sleeps: number[] = [];
  const points: CrashPoint[] = [];
  const dependencies = {
    store: state.handle({ dead: false }),
    releases: new Map(Object.entries(releases)),
    clock: {
      nowUnixMs: () => 0,
      sleep: async (ms: number) => {
        sleeps.push(ms);
      },
    },
    crashPoint: (point: CrashPoint) => {
      points.push(point);
    },
    log: silentLog,
  };
  const stored = () => Object.values(state.tables.resources).sort((a, b) => a.seq - b.seq);
  const open = () => new Ledger(dependencies, "a/1", stored());
  return { state, sleeps, points, stored, ledger: new Ledger(dependencies, "a/1"), open };
}

const thing = (name: string) => ({ kind: "thing", name, data: {} });

describe("ledger", () => {
  test("the intent is durable before anything is made", async () => {
    const { ledger, stored } = setUp({});
    await ledger.acquire(thing("one"), async () => {
      expect(stored()).toEqual([{ owner: "a/1", seq: 1, ...thing("one"), state: "intent" }]);
    });
    await ledger.acquire(thing("two"), async () => undefined);
    expect(stored().map(({ name, state }) => [name, state])).toEqual([
      ["one", "held"],
      ["two", "intent"],
    ]);
    expect(ledger.settle()).toHaveLength(1);
    expect(ledger.settle()).toEqual([]);
  });

  test("a failed make keeps its row, and everything is released newest first", async () => {
    const released: string[] = [];
    const { ledger, state, stored } = setUp({
      thing: async ({ name }) => {
        released.push(name);
      },
    });
    await ledger.acquire(thing("one"), async () => undefined);
    await expect(
      ledger.acquire(thing("two"), async () => {
        throw new Error("no");
      }),
    ).rejects.toThrow("no");
    expect(ledger.held().map(({ name }) => name)).toEqual(["one", "two"]);
    const { changes, stuck } = await ledger.releaseAll();
    expect(stuck).toBeNull();
    expect(released).toEqual(["two", "one"]);
    await state.handle({ dead: false }).commit(changes);
    expect(stored()).toEqual([]);
    expect(ledger.isEmpty).toBe(true);
  });

  test("a release is tried again with growing pauses", async () => {
    let calls = 0;
    const { ledger, sleeps } = setUp({
      thing: async () => {
        calls += 1;
        if (calls < 3) throw new Error("busy");
      },
    });
    await ledger.acquire(thing("one"), async () => undefined);
    expect((await ledger.releaseAll()).stuck).toBeNull();
    expect(sleeps).toEqual([limits.releaseBackoffMs, 2 * limits.releaseBackoffMs]);
  });

  test("one that stays stuck keeps its row and everything older", async () => {
    const released: string[] = [];
    const { ledger } = setUp({
      thing: async ({ name }) => {
        if (name === "two") throw new Error("in use");
        released.push(name);
      },
    });
    for (const name of ["one", "two", "three"]) await ledger.acquire(thing(name), async () => undefined);
    const { changes, stuck } = await ledger.releaseAll();
    expect(stuck).toEqual({ owner: "a/1", kind: "thing", name: "two", reason: "in use" });
    expect(released).toEqual(["three"]);
    expect(changes).toEqual([{ remove: "resource", owner: "a/1", kind: "thing", name: "three" }]);
    expect(ledger.held().map(({ name }) => name)).toEqual(["one", "two"]);
  });

  test("a kind that no plugin releases is stuck, not forgotten", async () => {
    const { ledger } = setUp({});
    await ledger.acquire(thing("one"), async () => undefined);
    expect((await ledger.releaseAll()).stuck?.reason).toContain("no plugin");
    expect(ledger.isEmpty).toBe(false);
  });

  test("data that is known later is durable at once and reaches the release after a restart", async () => {
    const seen: unknown[] = [];
    const { ledger, open } = setUp({
      thing: async ({ data }) => {
        seen.push(data);
      },
    });
    await ledger.acquire(thing("one"), async () => undefined);
    await ledger.update("thing", "one", { pid: 7 });
    await open().releaseAll();
    expect(seen).toEqual([{ pid: 7 }]);
  });

  test("release gives back one thing and forgets it", async () => {
    const { ledger, stored } = setUp({ thing: async () => undefined });
    await ledger.acquire(thing("one"), async () => undefined);
    await ledger.acquire(thing("two"), async () => undefined);
    await ledger.release("thing", "one");
    expect(stored().map(({ name }) => name)).toEqual(["two"]);
  });

  test("an intent may be made again after a failure, a held thing may not", async () => {
    const { ledger } = setUp({});
    const failing = ledger.acquire(thing("one"), async () => {
      throw new Error("no");
    });
    await expect(failing).rejects.toThrow("no");
    await ledger.acquire(thing("one"), async () => undefined);
    expect(ledger.held()).toHaveLength(1);
    expect(() => ledger.intend(thing("one"))).toThrow("already held");
  });

  test("a restarted journal numbers after what it found", async () => {
    const { ledger, open, stored } = setUp({});
    await ledger.acquire(thing("one"), async () => undefined);
    await open().acquire(thing("two"), async () => undefined);
    expect(stored().map(({ seq }) => seq)).toEqual([1, 2]);
  });

  test("the journal steps are crash points", async () => {
    const { ledger, points } = setUp({ thing: async () => undefined });
    await ledger.acquire(thing("one"), async () => undefined);
    await ledger.update("thing", "one", {});
    await ledger.releaseAll();
    expect(points).toEqual(["ledger.intent", "ledger.made", "ledger.updated", "ledger.releasing", "ledger.released"]);
  });
});
