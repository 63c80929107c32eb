// Pools in memory that are always full: members are ids, and a claim makes the sandbox.
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller, Operations, VmRecord } from "../../sandbox/operations.ts";
import type { ClaimRequest, CreatePoolRequest, Pool, PoolOperations } from "../../sandbox/pools/operations.ts";

export class FakePools implements PoolOperations {
  readonly byName = new Map<string, { readonly request: CreatePoolRequest; pool: Pool }>();
  readonly claims: ClaimRequest[] = [];

  constructor(private readonly operations: Operations) {}

  async createPool(caller: Caller, request: CreatePoolRequest): Promise<Pool> {
    if (request.size < 1) throw new AgentError("BAD_REQUEST");
    if (this.byName.has(request.name)) throw new AgentError("POOL_EXISTS");
    return this.#made(request, request.template.tenant ?? caller.tenant);
  }

  /** One that is there already, of nobody's tenant. */
  add(name: string, size: number): void {
    this.#made({ name, size, template: { backend: "qemu", backendRequest: {} } }, null);
  }

  #made(request: CreatePoolRequest, tenant: string | null): Pool {
    const { name, size, template } = request;
    const pool = {
      name,
      tenant,
      size,
      template: { backend: template.backend },
      members: Array.from({ length: size }, (_, at) => `member-${at}`),
      ready: size - 1,
      claimedTotal: 0,
      createdAtUnixMs: 1_800_000_000_000,
      error: null,
    };
    this.byName.set(name, { request, pool });
    return pool;
  }

  pools(caller: Caller): readonly Pool[] {
    const all = [...this.byName.values()].map(({ pool }) => pool);
    return all.filter(({ tenant }) => caller.tenant === null || tenant === caller.tenant);
  }

  pool(caller: Caller, name: string): Pool {
    return this.#find(caller, name).pool;
  }

  async removePool(caller: Caller, name: string): Promise<void> {
    this.#find(caller, name);
    this.byName.delete(name);
  }

  async resizePool(caller: Caller, name: string, size: number): Promise<Pool> {
    const found = this.#find(caller, name);
    found.pool = { ...found.pool, size };
    return found.pool;
  }

  async claim(caller: Caller, name: string, request: ClaimRequest): Promise<VmRecord> {
    const { pool } = this.#find(caller, name);
    if (pool.ready === 0) throw new AgentError("POOL_EMPTY");
    this.claims.push(request);
    return await this.operations.create(caller, { ...request, backend: "qemu", backendRequest: {} });
  }

  #find(caller: Caller, name: string) {
    const found = this.byName.get(name);
    if (found === undefined || !this.pools(caller).includes(found.pool)) throw new AgentError("POOL_NOT_FOUND");
    return found;
  }
}
