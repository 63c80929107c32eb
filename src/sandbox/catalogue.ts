// The index of all sandboxes and the rules that need the whole index: who may see what, which ids and short names are
// taken, how much a token uses, and what a list shows.
import { AgentError } from "../errors/agent-error.ts";
import type { CoreSettings } from "./dependencies.ts";
import { STATES, type State, stateOf } from "./lifecycle.ts";
import type { Caller, ListFilter, QuotaReply } from "./operations.ts";
import type { Sandbox } from "./sandbox.ts";
import { parseSelector } from "./selector.ts";
import { shortName } from "./short-name.ts";

/** What a create asks of the index. */
export interface Claim {
  readonly id: string;
  readonly token: string | null;
  readonly memoryMib: number;
}

type Limits = Pick<CoreSettings, "sandboxesMax" | "vmsMaxPerToken" | "memoryMibMaxPerToken">;

export class Catalogue {
  readonly #sandboxes = new Map<string, Sandbox>();
  readonly #shortNames = new Set<string>();

  constructor(private readonly settings: Limits) {}

  all(): readonly Sandbox[] {
    return [...this.#sandboxes.values()];
  }

  has(id: string): boolean {
    return this.#sandboxes.has(id);
  }

  byId(id: string): Sandbox | undefined {
    return this.#sandboxes.get(id);
  }

  /** One that waits in a pool is nobody's before it is claimed. */
  sees(caller: Caller, { record }: Sandbox): boolean {
    return record.pool === null && (caller.tenant === null || record.tenant === caller.tenant);
  }

  /** Rejects unknown and foreign ids alike, so that a tenant cannot probe for ids. */
  find(caller: Caller, id: string): Sandbox {
    const sandbox = this.#sandboxes.get(id);
    if (sandbox === undefined || !this.sees(caller, sandbox)) throw new AgentError("SANDBOX_NOT_FOUND");
    return sandbox;
  }

  /** Rejects a create that the index does not allow: id taken, host full, quota used up. Changes nothing. */
  admit(claim: Claim): void {
    if (this.has(claim.id)) throw new AgentError("SANDBOX_EXISTS", undefined, { details: { id: claim.id } });
    if (this.#sandboxes.size >= this.settings.sandboxesMax) throw new AgentError("SANDBOXES_EXHAUSTED");
    const { vms, memoryMib, vmsMax, memoryMibMax } = this.quota(claim.token);
    const details = { vms, memory_mib: memoryMib, max_vms: vmsMax, max_memory_mib: memoryMibMax };
    if (vmsMax !== null && vms >= vmsMax) {
      throw new AgentError("QUOTA_EXCEEDED", `this token may have ${vmsMax} sandboxes`, { details });
    }
    if (memoryMibMax !== null && memoryMib + claim.memoryMib > memoryMibMax) {
      throw new AgentError("QUOTA_EXCEEDED", `this token may use ${memoryMibMax} MiB of memory`, { details });
    }
  }

  /** Use and limits of a token; without authentication there is no token and nothing is limited. */
  quota(token: string | null): QuotaReply {
    let vms = 0;
    let memoryMib = 0;
    for (const { record } of this.#sandboxes.values()) {
      if (record.createdByToken !== token) continue;
      vms += 1;
      memoryMib += record.memoryMib;
    }
    const limited = token !== null;
    return {
      vms,
      memoryMib,
      vmsMax: limited ? this.settings.vmsMaxPerToken : null,
      memoryMibMax: limited ? this.settings.memoryMibMaxPerToken : null,
    };
  }

  /** A free short name; `add` of the sandbox that carries it must follow in the same step. */
  shortNameFor(id: string): string {
    return shortName(id, (name) => this.#shortNames.has(name));
  }

  add(sandbox: Sandbox): void {
    this.#sandboxes.set(sandbox.id, sandbox);
    this.#shortNames.add(sandbox.record.shortName);
  }

  remove(sandbox: Sandbox): void {
    this.#sandboxes.delete(sandbox.id);
    this.#shortNames.delete(sandbox.record.shortName);
  }

  /** What the caller may see of what the filter accepts, by creation time, then id. */
  list(caller: Caller, filter: ListFilter): readonly Sandbox[] {
    if (filter.state !== undefined && !(STATES as readonly string[]).includes(filter.state)) {
      throw new AgentError("BAD_REQUEST", `state is one of ${STATES.join(", ")}`);
    }
    const matches = parseSelector(filter.label ?? "");
    return this.all()
      .filter((sandbox) => {
        const { record } = sandbox;
        if (!this.sees(caller, sandbox)) return false;
        if (filter.state !== undefined && stateNow(sandbox) !== filter.state) return false;
        if (filter.name !== undefined && record.name !== filter.name) return false;
        if (filter.tenant !== undefined && record.tenant !== filter.tenant) return false;
        return matches(record.labels);
      })
      .sort((a, b) => a.record.createdAtUnixMs - b.record.createdAtUnixMs || (a.id < b.id ? -1 : 1));
  }
}

/** The wire's state word of a sandbox at this moment. */
export function stateNow(sandbox: Sandbox): State {
  return stateOf(sandbox.record.phase, sandbox.runningCommands, sandbox.record.error !== null);
}
