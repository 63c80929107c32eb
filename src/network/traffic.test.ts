import { expect, test } from "bun:test";
import type { TrafficStats } from "../contracts/dataplane.ts";
import { NO_TRAFFIC, TrafficTotals } from "./traffic.ts";

function station() {
  const stats = new Map<string, TrafficStats>();
  const observation = {
    stats: async (id: string) => {
      const found = stats.get(id);
      if (found === undefined) throw new Error("gone");
      return found;
    },
  };
  const set = (id: string, packets: bigint) => {
    stats.set(id, { allowedPackets: packets, allowedBytes: 10n * packets, droppedPackets: 1n, droppedBytes: 2n });
  };
  const connected = ["a", "b"];
  return { set, stats, connected, totals: new TrafficTotals(observation, () => connected) };
}

test("sums over sandboxes, and counts what came once", async () => {
  const { set, totals } = station();
  expect(await totals.read()).toEqual(NO_TRAFFIC);
  set("a", 5n);
  set("b", 7n);
  const first = await totals.read();
  expect(first).toEqual({ allowedPackets: 12n, allowedBytes: 120n, droppedPackets: 2n, droppedBytes: 4n });
  expect(await totals.read()).toEqual(first);
  set("a", 6n);
  const together = await Promise.all([totals.read(), totals.read()]);
  expect(together.map(({ allowedPackets }) => allowedPackets)).toEqual([13n, 13n]);
  expect((await totals.read()).allowedPackets).toBe(13n);
});

test("never goes down: sandboxes that end, begin anew or cannot be asked for once", async () => {
  const { set, stats, connected, totals } = station();
  set("a", 5n);
  set("b", 7n);
  await totals.read();
  stats.delete("a");
  expect((await totals.read()).allowedPackets).toBe(12n);
  set("a", 6n);
  expect((await totals.read()).allowedPackets).toBe(13n);
  connected.splice(0, 1);
  expect((await totals.read()).allowedPackets).toBe(13n);
  set("b", 2n);
  expect((await totals.read()).allowedPackets).toBe(15n);
});
