// What can be asked of warm pools: sandboxes that were started ahead and wait frozen, so that a claim has one at once.
import type { JsonObject } from "../../contracts/json.ts";
import type { Caller, CreateSandboxRequest, VmRecord } from "../operations.ts";

export interface CreatePoolRequest {
  /** 1 to 64 of `A-Z a-z 0-9 . _ -`. */
  readonly name: string;
  /** How many wait, from 1 to `limits.poolSizeMax`. */
  readonly size: number;
  /** What each is made of; its id, name and time to live are ignored. */
  readonly template: Omit<CreateSandboxRequest, "idempotency" | "pool">;
}

export interface Pool {
  readonly name: string;
  readonly tenant: string | null;
  readonly size: number;
  /** What each is made of, as it was asked for, without secrets. */
  readonly template: JsonObject;
  /** Ids of the sandboxes that wait, oldest first. */
  readonly members: readonly string[];
  /** How many can be claimed now. */
  readonly ready: number;
  readonly claimedTotal: number;
  readonly createdAtUnixMs: number;
  /** Why the last that was tried could not be made, until one could. */
  readonly error: string | null;
}

export interface ClaimRequest {
  readonly name?: string;
  /** Added to those of the pool, whose values give way. */
  readonly env?: Readonly<Record<string, string>>;
  /** Counted from the claim. */
  readonly ttlSeconds?: number;
  /** 1 to 128 of `A-Z a-z 0-9 . _ -`; shown in the record. */
  readonly podUid?: string;
}

/** Every method rejects with `AgentError`. Pools that are unknown or another tenant's are `POOL_NOT_FOUND` alike. */
export interface PoolOperations {
  /**
   * Answers at once; its members are made in the background. Rejects with what the backend says to the template, with
   * `NOT_SUPPORTED` when it cannot freeze, and `POOL_EXISTS` for a name that any pool of this host has.
   */
  createPool(caller: Caller, request: CreatePoolRequest): Promise<Pool>;
  /** By name. */
  pools(caller: Caller): readonly Pool[];
  pool(caller: Caller, name: string): Pool;
  /** Removes the pool and all who wait in it; who was claimed stays. */
  removePool(caller: Caller, name: string): Promise<void>;
  /** Grows in the background, shrinks at once. */
  resizePool(caller: Caller, name: string, size: number): Promise<Pool>;
  /**
   * Takes the oldest that waits: it is resumed and becomes a sandbox like any other, created at this moment. Another is
   * made in its place. `POOL_EMPTY` when none is ready.
   */
  claim(caller: Caller, name: string, request: ClaimRequest): Promise<VmRecord>;
}
