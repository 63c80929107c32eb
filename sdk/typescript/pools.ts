// Warm pools: sandboxes that were started ahead and wait frozen, so that a claim has one at once.
import type { CallOptions } from "./retry.ts";
import { segment, type Transport } from "./transport.ts";
import type { ClaimFromPool, CreatePool, Pool, VmRecord } from "./types.ts";

export interface ClaimOptions extends CallOptions {
  /** `exec`: resolves when a first command has run, and the record has `phases`. */
  readonly ready?: "exec";
}

/** Every method rejects with `ApiError` (`POOL_NOT_FOUND`, also for another tenant's) or `UnreachableError`. */
export class Pools {
  constructor(private readonly transport: Transport) {}

  /** Resolves at once; its members are started in the background. */
  create(request: CreatePool, { signal }: CallOptions = {}): Promise<Pool> {
    return this.transport.json("POST", "/v1/pools", { json: request, signal });
  }

  async list({ signal }: CallOptions = {}): Promise<readonly Pool[]> {
    return (await this.transport.json<{ items: readonly Pool[] }>("GET", "/v1/pools", { signal })).items;
  }

  show(name: string, { signal }: CallOptions = {}): Promise<Pool> {
    return this.transport.json("GET", pathOf(name), { signal });
  }

  /** Removes it and those who wait in it; who was claimed stays. */
  async remove(name: string, { signal }: CallOptions = {}): Promise<void> {
    await this.transport.json("DELETE", pathOf(name), { signal });
  }

  /** More are started in the background, fewer are removed at once. */
  resize(name: string, size: number, { signal }: CallOptions = {}): Promise<Pool> {
    return this.transport.json("POST", `${pathOf(name)}/resize`, { json: { size }, signal });
  }

  /** Takes one that waits. Rejects with `POOL_EMPTY` when none is ready. */
  claim(name: string, request: ClaimFromPool = {}, { ready, signal }: ClaimOptions = {}): Promise<VmRecord> {
    return this.transport.json("POST", `${pathOf(name)}/claim`, { json: request, query: { ready }, signal });
  }
}

function pathOf(name: string): string {
  return `/v1/pools/${segment(name)}`;
}
