// The bucket refills by the clock, tells how long to wait, and is forgotten after it was idle.
import { expect, test } from "bun:test";
import { limits } from "../config/limits.ts";
import { refusal } from "../errors/testing.ts";
import { RateLimiter } from "./rate-limit.ts";

test("a burst passes, then one request for each interval", () => {
  let nowMs = 0;
  const limiter = new RateLimiter(2, 3, () => nowMs);
  for (let n = 0; n < 3; n += 1) limiter.take("a");
  expect(refusal(() => limiter.take("a")).code).toBe("RATE_LIMITED");
  nowMs = 499;
  expect(refusal(() => limiter.take("a")).code).toBe("RATE_LIMITED");
  nowMs = 500;
  limiter.take("a");
  nowMs = 60_000;
  for (let n = 0; n < 3; n += 1) limiter.take("a");
  expect(refusal(() => limiter.take("a")).code).toBe("RATE_LIMITED");
});

test("actors do not share a bucket", () => {
  const limiter = new RateLimiter(1, 1, () => 0);
  limiter.take("a");
  limiter.take("b");
});

test("the wait is whole seconds plus one", () => {
  const limiter = new RateLimiter(0.1, 1, () => 0);
  limiter.take("a");
  expect(refusal(() => limiter.take("a")).details).toEqual({ retry_after_seconds: 11 });
});

test("idle buckets are dropped", () => {
  let nowMs = 0;
  const limiter = new RateLimiter(1, 1, () => nowMs);
  for (let n = 0; n < 100; n += 1) limiter.take(`actor-${n}`);
  nowMs = limits.rateBucketIdleMs;
  limiter.take("late");
  expect(limiter.size).toBe(1);
});
