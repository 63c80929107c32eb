// Keeps pools as large as they are meant to be: members are made one after the other in the background, frozen once
// their guest agent has answered, and removed when they are too many, broken or of no pool. Nothing here is remembered
// but by the records: what a crash cut is looked at again.
import { limits } from "../../config/limits.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import type { Context } from "../context.ts";
import { create } from "../create.ts";
import { ping } from "../guest-access.ts";
import type { Phase } from "../lifecycle.ts";
import type { Caller } from "../operations.ts";
import { pause } from "../power.ts";
import { remove } from "../remove.ts";
import type { Sandbox } from "../sandbox.ts";
import type { PoolRecord } from "./book.ts";

/** While it is being made, only its maker may end it. */
const BEGINNING: ReadonlySet<Phase> = new Set(["creating", "starting"]);
/** From these nobody comes back to waiting. */
const BROKEN: ReadonlySet<Phase> = new Set(["stopped", "failed", "removing"]);

interface Failure {
  readonly error: string;
  readonly count: number;
  readonly retryAtUnixMs: number;
}

export class PoolKeeper {
  readonly #filling = new Map<string, Promise<void>>();
  readonly #failures = new Map<string, Failure>();
  readonly #reserved = new Set<Sandbox>();

  constructor(private readonly context: Context) {}

  /** Looks after every pool. Returns at once; never rejects. */
  tend(): void {
    for (const { id } of this.context.pools.all()) this.fill(id);
    void this.#removeStrays();
  }

  /** Begins to bring a pool to its size, unless that is going on. */
  fill(id: string): void {
    if (this.#filling.has(id)) return;
    const filling = this.#fill(id)
      .catch((error: unknown) => this.#log(error, "a pool could not be filled"))
      .finally(() => this.#filling.delete(id));
    this.#filling.set(id, filling);
  }

  /** Those who wait in a pool and whom nobody has reserved, oldest first. */
  members(id: string): readonly Sandbox[] {
    return this.context.catalogue
      .all()
      .filter((sandbox) => sandbox.record.pool === id && !this.#reserved.has(sandbox))
      .sort((a, b) => a.record.createdAtUnixMs - b.record.createdAtUnixMs || (a.id < b.id ? -1 : 1));
  }

  /** Those of them that can be claimed. */
  ready(id: string): readonly Sandbox[] {
    return this.members(id).filter(({ record, live }) => record.phase === "paused" && live !== null);
  }

  /** Why the last member could not be made. */
  errorOf(id: string): string | null {
    return this.#failures.get(id)?.error ?? null;
  }

  /** Runs `work` on a member that nobody else touches meanwhile. */
  async reserve<T>(sandbox: Sandbox, work: () => Promise<T>): Promise<T> {
    this.#reserved.add(sandbox);
    try {
      return await work();
    } finally {
      this.#reserved.delete(sandbox);
    }
  }

  /** Removes members beyond the size of the pool, those who are not ready first. Failures are logged. */
  async trim(id: string): Promise<void> {
    const size = this.context.pools.byId(id)?.size ?? 0;
    const ready = new Set(this.ready(id));
    const members = this.members(id);
    const kept = new Set([...members].sort((a, b) => Number(ready.has(b)) - Number(ready.has(a))).slice(0, size));
    const others = members.filter((sandbox) => !kept.has(sandbox) && !BEGINNING.has(sandbox.record.phase));
    await Promise.all(others.map((sandbox) => this.discard(sandbox)));
  }

  /** Removes a member. A failure is logged; the next look tries again. */
  async discard(sandbox: Sandbox): Promise<void> {
    await remove(this.context, sandbox).catch((error: unknown) =>
      this.#log(error, "a pool member could not be removed"),
    );
  }

  async #fill(id: string): Promise<void> {
    for (;;) {
      const pool = this.context.pools.byId(id);
      if (this.context.closing) return;
      if (pool === undefined) return await this.trim(id);
      for (const member of this.members(id)) {
        if (member.record.phase !== "paused") await this.reserve(member, () => this.#settle(member));
      }
      await this.trim(id);
      if (this.members(id).length >= pool.size || !this.#mayTry(id)) return;
      try {
        await this.#add(pool);
        this.#failures.delete(id);
      } catch (error) {
        this.#failed(id, error);
      }
    }
  }

  async #add(pool: PoolRecord): Promise<void> {
    const caller: Caller = { actor: "pool", role: "admin", tenant: pool.tenant, token: pool.createdByToken };
    const { id } = await create(this.context, caller, {
      name: `pool-${pool.name}`,
      labels: pool.labels,
      backend: pool.backend,
      backendRequest: pool.backendRequest,
      pool: pool.id,
      env: this.context.pools.environmentOf(pool.id),
      ...(pool.tenant !== null && { tenant: pool.tenant }),
    });
    const sandbox = this.context.catalogue.byId(id);
    if (sandbox !== undefined) await this.reserve(sandbox, () => this.#freeze(sandbox));
  }

  /** A member that an earlier life left half made, or that broke while it waited. */
  async #settle(member: Sandbox): Promise<void> {
    if (BROKEN.has(member.record.phase)) return await this.discard(member);
    if (member.record.phase === "ready") await this.#freeze(member).catch(() => undefined);
  }

  /** Only a guest whose agent answers is worth keeping. */
  async #freeze(sandbox: Sandbox): Promise<void> {
    // The next agent does it.
    if (this.context.closing) return;
    try {
      await ping(sandbox);
      await pause(this.context, sandbox);
    } catch (error) {
      if (!this.context.closing) await this.discard(sandbox);
      throw error;
    }
  }

  /** Members of pools that were removed. */
  async #removeStrays(): Promise<void> {
    if (this.context.closing) return;
    const strays = this.context.catalogue.all().filter((sandbox) => {
      const { pool, phase } = sandbox.record;
      const isKept = pool === null || BEGINNING.has(phase) || this.#reserved.has(sandbox);
      return !isKept && this.context.pools.byId(pool) === undefined && !this.#filling.has(pool);
    });
    await Promise.all(strays.map((sandbox) => this.discard(sandbox)));
  }

  #mayTry(id: string): boolean {
    const failure = this.#failures.get(id);
    return failure === undefined || failure.retryAtUnixMs <= this.context.dependencies.clock.nowUnixMs();
  }

  #failed(id: string, thrown: unknown): void {
    const { message, code } = asAgentError(thrown);
    const count = (this.#failures.get(id)?.count ?? 0) + 1;
    const waitMs = Math.min(limits.poolRetryMinMs * 2 ** (count - 1), limits.poolRetryMaxMs);
    const retryAtUnixMs = this.context.dependencies.clock.nowUnixMs() + waitMs;
    this.#failures.set(id, { error: `${code}: ${message}`, count, retryAtUnixMs });
    this.#log(thrown, "a pool member could not be made");
  }

  #log(error: unknown, what: string): void {
    this.context.dependencies.log.warn({ error: asAgentError(error).message }, what);
  }
}
