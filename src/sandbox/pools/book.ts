// The pools of this host in memory, as they are stored: which there are, and who may see them.
import { z } from "zod";
import type { JsonObject } from "../../contracts/json.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { PoolRow, StoredState } from "../../state/change.ts";
import { type Environment, storedEnvironment } from "../environment.ts";
import type { Caller } from "../operations.ts";

const jsonObject = z.custom<JsonObject>((value) => typeof value === "object" && value !== null);

const poolSchema = z.object({
  /** Tells apart two pools that had the same name one after the other; members are known by it. */
  id: z.string(),
  name: z.string(),
  tenant: z.string().nullable(),
  /** The token that pays for the members. */
  createdByToken: z.string().nullable(),
  createdAtUnixMs: z.int().nonnegative(),
  size: z.int().positive(),
  claimedTotal: z.int().nonnegative(),
  backend: z.string(),
  backendRequest: jsonObject,
  labels: z.record(z.string(), z.string()),
});

export type PoolRecord = Readonly<z.infer<typeof poolSchema>>;

export class PoolBook {
  readonly #pools = new Map<string, PoolRecord>();
  readonly #environments = new Map<string, Environment>();

  /** Rejects rows that are damaged with `STATE_UNAVAILABLE`. */
  restore(rows: readonly PoolRow[], secrets: StoredState["secrets"]): void {
    for (const { id, body } of rows) {
      const parsed = poolSchema.safeParse(body);
      if (!parsed.success || parsed.data.id !== id) {
        throw new AgentError("STATE_UNAVAILABLE", `the stored pool ${id} is damaged`, { cause: parsed.error });
      }
      this.put(parsed.data);
      this.equip(id, storedEnvironment(secrets, id));
    }
  }

  put(pool: PoolRecord): void {
    this.#pools.set(pool.id, pool);
  }

  remove(id: string): void {
    this.#pools.delete(id);
    this.#environments.delete(id);
  }

  /** Gives the members to come variables, which are no part of the record as they may be secret. */
  equip(id: string, environment: Environment): void {
    this.#environments.set(id, environment);
  }

  environmentOf(id: string): Environment {
    return this.#environments.get(id) ?? {};
  }

  byId(id: string): PoolRecord | undefined {
    return this.#pools.get(id);
  }

  /** By name. */
  all(): readonly PoolRecord[] {
    return [...this.#pools.values()].sort((a, b) => (a.name < b.name ? -1 : 1));
  }

  sees(caller: Caller, pool: PoolRecord): boolean {
    return caller.tenant === null || pool.tenant === caller.tenant;
  }

  /** Rejects unknown and foreign names alike with `POOL_NOT_FOUND`. */
  find(caller: Caller, name: string): PoolRecord {
    const pool = this.all().find((candidate) => candidate.name === name);
    if (pool === undefined || !this.sees(caller, pool)) throw new AgentError("POOL_NOT_FOUND");
    return pool;
  }
}

export function toPoolRow(pool: PoolRecord): PoolRow {
  return { id: pool.id, body: { ...pool } };
}
