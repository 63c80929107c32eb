import { expect, test } from "bun:test";
import { limits } from "../../config/limits.ts";
import { until } from "../testing/execution-world.ts";
import { type Kept, Retention } from "./retention.ts";
import { storedExecution } from "./stored.ts";

const MIB = 1024 * 1024;
const GRACE_MS = 20;

/** An execution that ended at `endedAt`, or runs when that is null. */
function execution(id: string, endedAt: number | null, diskBytes: number, is: Partial<Kept> = {}): Kept {
  const ended = endedAt !== null;
  const stored = storedExecution({
    id,
    tty: false,
    onDisconnect: "keep",
    overflow: "ring",
    run: 1,
    incarnation: 0,
    startedAtUnixMs: 0,
    end: ended
      ? {
          atUnixMs: endedAt,
          exitCode: 0,
          signal: null,
          timedOut: false,
          oomKilled: false,
          outputOpen: false,
          error: null,
        }
      : null,
    stdin: { bytesWritten: 0, closed: true },
  });
  return { id, stored, running: !ended, idle: ended, abandoned: ended, diskBytes, ...is };
}

function retention(all: Kept[]) {
  const forgotten: string[] = [];
  const kept = new Retention(
    {
      all: () => all,
      forget: (gone) => {
        forgotten.push(gone.id);
        all.splice(all.indexOf(gone), 1);
        kept.left(gone);
        kept.budget.give(gone.diskBytes);
      },
    },
    GRACE_MS,
  );
  for (const one of all) {
    kept.budget.takeAlways(one.diskBytes);
    if (!one.running) kept.ended(one);
  }
  return { kept, forgotten };
}

test("what ended first makes place, unless it is read", () => {
  const { kept, forgotten } = retention([
    execution("runs", null, 0),
    execution("second", 2, 0),
    execution("read", 0, 0, { idle: false, abandoned: false }),
    execution("first", 1, 0),
  ]);
  expect([kept.makePlace(), kept.makePlace(), kept.makePlace()]).toEqual([true, true, false]);
  expect(forgotten).toEqual(["first", "second"]);
});

test("room is taken from what is abandoned before what somebody may come back to, and only from what has some", () => {
  const recent = { abandoned: false };
  const half = limits.executionRingsTotalMaxBytes / 2;
  const { kept, forgotten } = retention([
    execution("empty", 0, 0),
    execution("recent", 1, half, recent),
    execution("abandoned", 2, half),
  ]);
  expect(kept.budget.take(MIB, 0)).toBe(true);
  expect(forgotten).toEqual(["abandoned"]);
  // A larger ring is nothing that somebody's output would be given up for.
  expect(kept.budget.take(half, kept.budget.modestBytes)).toBe(false);
  expect(kept.budget.take(half, 0)).toBe(true);
  expect(forgotten).toEqual(["abandoned", "recent"]);
  expect(kept.budget.take(half, 0)).toBe(false);
});

test("a larger ring leaves those that run what they can count on", () => {
  const { kept } = retention([]);
  const spared = limits.executionRingsTotalMaxBytes / 8;
  const rest = limits.executionRingsTotalMaxBytes - spared;
  expect(kept.budget.take(rest, kept.budget.modestBytes)).toBe(true);
  kept.budget.give(rest);
  const { kept: busy } = retention([execution("runs", null, 0)]);
  expect(busy.budget.take(rest, busy.budget.modestBytes)).toBe(false);
  expect(busy.budget.take(rest - busy.budget.modestBytes, busy.budget.modestBytes)).toBe(true);
});

test("what is over keeps a part of the room, once nobody comes back to it", async () => {
  const quarter = limits.executionRingsKeptMaxBytes / 4;
  const recent = { abandoned: false };
  const last = { ...execution("e6", 6, quarter), ...recent };
  const { kept, forgotten } = retention([...[1, 2, 3, 4, 5].map((n) => execution(`e${n}`, n, quarter)), last]);
  await until(() => forgotten.length === 1, "the first is too much");
  await Bun.sleep(2 * GRACE_MS);
  expect(forgotten).toEqual(["e1"]);
  last.abandoned = true;
  await until(() => forgotten.length === 2, "another is too much now");
  await Bun.sleep(2 * GRACE_MS);
  expect(forgotten).toEqual(["e1", "e2"]);
  kept.close();
});
