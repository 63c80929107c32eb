// The part of the state that the HTTP surface reads, in memory.
import { AgentError } from "../../errors/agent-error.ts";
import type { Change, EventQuery, EventRow, IdempotencyRow, Store } from "../../state/change.ts";

export class MemoryStore implements Pick<Store, "idempotency" | "commit" | "events"> {
  readonly rows = new Map<string, IdempotencyRow>();
  readonly log: EventRow[] = [];
  isBroken = false;

  async idempotency(hash: string): Promise<IdempotencyRow | null> {
    if (this.isBroken) throw new AgentError("STATE_UNAVAILABLE");
    return this.rows.get(hash) ?? null;
  }

  async commit(changes: readonly Change[]): Promise<void> {
    if (this.isBroken) throw new AgentError("STATE_UNAVAILABLE");
    for (const change of changes) {
      if ("begin" in change) {
        if (this.rows.has(change.row.hash)) throw new Error("the hash exists");
        this.rows.set(change.row.hash, change.row);
      } else if ("finish" in change) {
        this.rows.set(change.hash, { ...this.rows.get(change.hash)!, reply: change.reply });
      } else if ("remove" in change && change.remove === "idempotency") {
        this.rows.delete(change.hash);
      }
    }
  }

  async events(query: EventQuery): Promise<readonly EventRow[]> {
    return this.log
      .filter((row) => query.sandboxId === undefined || row.sandboxId === query.sandboxId)
      .filter((row) => query.actionPrefix === undefined || row.action.startsWith(query.actionPrefix))
      .filter((row) => query.sinceUnixMs === undefined || row.atUnixMs >= query.sinceUnixMs)
      .filter((row) => (query.tenant ?? null) === null || row.tenant === query.tenant)
      .slice(-query.limit);
  }
}
