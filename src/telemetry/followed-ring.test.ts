import { expect, test } from "bun:test";
import { FollowedRing } from "./followed-ring.ts";

test("a follower gets what comes, and is told what it was too slow for", async () => {
  const ring = new FollowedRing<string>(3);
  const abort = new AbortController();
  expect([ring.publish("a"), ring.publish("b")]).toEqual([1, 2]);
  const deliveries = ring.follow(abort.signal, 1);
  expect((await deliveries.next()).value).toEqual({ item: "b", sequence: 2 });
  const waiting = deliveries.next();
  for (const item of ["c", "d", "e", "f", "g"]) ring.publish(item);
  expect((await waiting).value).toEqual({ missed: 2 });
  expect((await deliveries.next()).value).toEqual({ item: "e", sequence: 5 });
  abort.abort();
  expect((await deliveries.next()).done).toBe(true);
});

test("a position that is none is the nearest that is one", async () => {
  const ring = new FollowedRing<number>(2);
  ring.publish(7);
  const abort = new AbortController();
  expect((await ring.follow(abort.signal, -5).next()).value).toEqual({ item: 7, sequence: 1 });
  const beyond = ring.follow(abort.signal, 99).next();
  ring.publish(8);
  expect((await beyond).value).toEqual({ item: 8, sequence: 2 });
});
