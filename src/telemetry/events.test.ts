import { describe, expect, test } from "bun:test";
import type { Change, EventRow } from "../state/change.ts";
import { EventBus, type Delivery } from "./events.ts";

const row = (n: number): EventRow => ({ atUnixMs: n, sandboxId: null, tenant: null, action: "x", attributes: {} });
const store = { commit: () => Promise.resolve() };

const describeDelivery = (delivery: Delivery) =>
  "event" in delivery ? delivery.event.sequence : `missed ${delivery.missed}`;

async function take(deliveries: AsyncGenerator<Delivery>, count: number): Promise<(number | string)[]> {
  const taken: (number | string)[] = [];
  while (taken.length < count) {
    const { value, done } = await deliveries.next();
    if (done === true || value === undefined) break;
    taken.push(describeDelivery(value));
  }
  return taken;
}

test("the sequence is contiguous from 1, under one epoch for each bus", () => {
  const bus = new EventBus(store);
  const events = [row(1), row(2), row(3)].map((event) => bus.publish(event));
  expect(events.map((event) => event.sequence)).toEqual([1, 2, 3]);
  expect(new Set(events.map((event) => event.epoch))).toEqual(new Set([bus.epoch]));
  expect(new EventBus(store).epoch).not.toBe(bus.epoch);
});

describe("append", () => {
  test("publishes what is durable", async () => {
    const commits: (readonly Change[])[] = [];
    const bus = new EventBus({ commit: async (changes) => void commits.push(changes) });
    expect(await bus.append(row(7))).toMatchObject({ sequence: 1, atUnixMs: 7 });
    expect(commits).toEqual([[{ append: "event", row: row(7) }]]);
  });

  test("publishes nothing that could not be made durable", async () => {
    const bus = new EventBus({ commit: () => Promise.reject(new Error("full")) });
    expect(bus.append(row(1))).rejects.toThrow("full");
    await Bun.sleep(0);
    expect(bus.sequence).toBe(0);
  });
});

describe("a follower", () => {
  test("gets what comes after it began, at once", async () => {
    const bus = new EventBus(store);
    bus.publish(row(1));
    const following = bus.follow(new AbortController().signal);
    const first = following.next();
    bus.publish(row(2));
    bus.publish(row(3));
    expect(describeDelivery((await first).value as Delivery)).toBe(2);
    expect(await take(following, 1)).toEqual([3]);
  });

  test("resumes after a sequence that it has seen", async () => {
    const bus = new EventBus(store);
    for (let n = 0; n < 10; n++) bus.publish(row(n));
    expect(await take(bus.follow(new AbortController().signal, 7), 3)).toEqual([8, 9, 10]);
  });

  test("that is too slow is told how much it missed, and goes on with the oldest there is", async () => {
    const bus = new EventBus(store);
    const following = bus.follow(new AbortController().signal);
    const first = following.next();
    bus.publish(row(0));
    await first;
    for (let n = 0; n < 300; n++) bus.publish(row(n));
    expect(await take(following, 3)).toEqual(["missed 44", 46, 47]);
    const rest = await take(following, 254);
    expect(rest.at(-1)).toBe(301);
    for (let n = 0; n < 256; n++) bus.publish(row(n));
    expect(await take(following, 2)).toEqual([302, 303]);
  });

  test("ends when its signal aborts, waiting or not", async () => {
    const bus = new EventBus(store);
    const abort = new AbortController();
    const waiting = take(bus.follow(abort.signal), 1);
    await Bun.sleep(0);
    abort.abort();
    expect(await waiting).toEqual([]);
    bus.publish(row(1));
    expect(await take(bus.follow(abort.signal, 0), 1)).toEqual([]);
  });

  test("does not disturb the others", async () => {
    const bus = new EventBus(store);
    const signals = Array.from({ length: 50 }, () => new AbortController().signal);
    const all = signals.map((signal) => take(bus.follow(signal), 20));
    await Bun.sleep(0);
    for (let n = 0; n < 20; n++) bus.publish(row(n));
    for (const taken of await Promise.all(all)) expect(taken).toEqual(Array.from({ length: 20 }, (_, n) => n + 1));
  });
});
