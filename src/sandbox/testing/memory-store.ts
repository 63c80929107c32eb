// A state in memory with the same promises as the real one: a commit happens whole or not at all, and what is not plain
// JSON does not survive it. Several handles share one state, so that a test can let an agent die and start another.
import { AgentError } from "../../errors/agent-error.ts";
import type {
  Change,
  EventRow,
  IdempotencyRow,
  LeaseRow,
  PoolRow,
  RecordRow,
  ResourceRow,
  Store,
} from "../../state/change.ts";
import { IdempotencyConflict, LeaseConflict } from "../../state/conflicts.ts";

interface Tables {
  records: Record<string, RecordRow>;
  secrets: Record<string, { id: string; name: string; value: string }>;
  resources: Record<string, ResourceRow>;
  leases: Record<string, LeaseRow>;
  idempotency: Record<string, IdempotencyRow>;
  pools: Record<string, PoolRow>;
  events: EventRow[];
}

const key = (...parts: (string | number)[]): string => parts.join("\n");

function apply(tables: Tables, change: Change): void {
  if ("take" in change) {
    const { row } = change;
    const at = key(row.kind, row.value);
    if (tables.leases[at] !== undefined) throw new LeaseConflict(row.kind, row.value);
    tables.leases[at] = row;
  } else if ("quarantine" in change) {
    for (const [at, row] of Object.entries(tables.leases)) {
      if (row.owner === change.owner) tables.leases[at] = { ...row, state: "quarantined" };
    }
  } else if ("free" in change) {
    delete tables.leases[key(change.kind, change.value)];
  } else if ("begin" in change) {
    if (tables.idempotency[change.row.hash] !== undefined) throw new IdempotencyConflict(change.row.hash);
    tables.idempotency[change.row.hash] = change.row;
  } else if ("finish" in change) {
    const row = tables.idempotency[change.hash];
    if (row !== undefined) tables.idempotency[change.hash] = { ...row, reply: change.reply };
  } else if ("append" in change) {
    tables.events.push(change.row);
  } else if ("put" in change) {
    if (change.put === "record") tables.records[change.row.id] = change.row;
    else if (change.put === "secret") {
      tables.secrets[key(change.id, change.name)] = { id: change.id, name: change.name, value: change.value };
    } else if (change.put === "pool") tables.pools[change.row.id] = change.row;
    else tables.resources[key(change.row.owner, change.row.kind, change.row.name)] = change.row;
  } else if (change.remove === "record") delete tables.records[change.id];
  else if (change.remove === "resource") delete tables.resources[key(change.owner, change.kind, change.name)];
  else if (change.remove === "idempotency") delete tables.idempotency[change.hash];
  else if (change.remove === "pool") delete tables.pools[change.id];
  else {
    for (const [at, secret] of Object.entries(tables.secrets)) {
      if (secret.id === change.id) delete tables.secrets[at];
    }
  }
}

export class MemoryState {
  tables: Tables = { records: {}, secrets: {}, resources: {}, leases: {}, idempotency: {}, pools: {}, events: [] };
  commits = 0;
  /** Rejects commits for which it answers true. */
  refuse: (changes: readonly Change[]) => boolean = () => false;

  /** A store as one agent process sees it; after `dead` becomes true its commits never settle. */
  handle(life: { dead: boolean }): Store {
    return {
      load: async () => ({
        records: Object.values(this.tables.records),
        secrets: Object.values(this.tables.secrets),
        resources: Object.values(this.tables.resources),
        leases: Object.values(this.tables.leases),
        pools: Object.values(this.tables.pools),
        inFlight: Object.values(this.tables.idempotency)
          .filter(({ reply }) => reply === null)
          .map(({ hash }) => hash),
      }),
      commit: async (changes) => {
        await Promise.resolve();
        if (life.dead) await new Promise(() => undefined);
        if (this.refuse(changes)) throw new AgentError("STATE_UNAVAILABLE");
        const next = structuredClone(this.tables);
        for (const change of JSON.parse(JSON.stringify(changes)) as Change[]) apply(next, change);
        this.tables = next;
        this.commits += 1;
      },
      idempotency: async (hash) => this.tables.idempotency[hash] ?? null,
      events: async () => this.tables.events,
      prune: async () => undefined,
      close: async () => undefined,
    };
  }
}
