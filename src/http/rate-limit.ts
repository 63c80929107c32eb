// One token bucket for each actor. The clock is passed in, so that tests need not wait.
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";

interface Bucket {
  tokens: number;
  updatedAtMs: number;
}

export class RateLimiter {
  readonly #buckets = new Map<string, Bucket>();
  readonly #ratePerMs: number;
  #prunedAtMs = 0;

  /** `requestsPerSecond` refills a bucket that holds `burst` at most. */
  constructor(
    requestsPerSecond: number,
    private readonly burst: number,
    private readonly nowMs: () => number = () => performance.now(),
  ) {
    this.#ratePerMs = requestsPerSecond / 1000;
  }

  /** Takes one token of the actor's bucket; throws `RATE_LIMITED` with `details.retry_after_seconds`. */
  take(actor: string): void {
    const nowMs = this.nowMs();
    this.#prune(nowMs);
    const bucket = this.#buckets.get(actor) ?? { tokens: this.burst, updatedAtMs: nowMs };
    this.#buckets.set(actor, bucket);
    bucket.tokens = Math.min(this.burst, bucket.tokens + (nowMs - bucket.updatedAtMs) * this.#ratePerMs);
    bucket.updatedAtMs = nowMs;
    if (bucket.tokens < 1) {
      const waitSeconds = Math.floor((1 - bucket.tokens) / this.#ratePerMs / 1000);
      throw new AgentError("RATE_LIMITED", undefined, { details: { retry_after_seconds: waitSeconds + 1 } });
    }
    bucket.tokens -= 1;
  }

  /** Buckets that are held at this moment. */
  get size(): number {
    return this.#buckets.size;
  }

  #prune(nowMs: number): void {
    if (nowMs - this.#prunedAtMs < limits.rateBucketIdleMs) return;
    this.#prunedAtMs = nowMs;
    for (const [actor, bucket] of this.#buckets) {
      if (nowMs - bucket.updatedAtMs >= limits.rateBucketIdleMs) this.#buckets.delete(actor);
    }
  }
}
