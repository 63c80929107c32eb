// Turns changes into SQL: one prepared statement a kind of change, run inside whatever transaction the caller opened.
import type { Database, Statement } from "bun:sqlite";
import type { Change } from "./change.ts";
import { IdempotencyConflict, LeaseConflict } from "./conflicts.ts";

type Value = string | number | null;

export class ChangeWriter {
  readonly #statements: ReturnType<typeof prepare>;

  constructor(db: Database) {
    this.#statements = prepare(db);
  }

  /** Writes one change. Throws `LeaseConflict`, `IdempotencyConflict` or what SQLite throws. */
  apply(change: Change): void {
    if ("put" in change) return this.#put(change);
    if ("remove" in change) return this.#remove(change);
    const sql = this.#statements;
    if ("take" in change) {
      const { kind, value, owner, state } = change.row;
      if (sql.takeLease.run(kind, value, owner, state).changes === 0) throw new LeaseConflict(kind, value);
    } else if ("quarantine" in change) {
      sql.quarantineLeases.run(change.owner);
    } else if ("free" in change) {
      sql.freeLease.run(change.kind, change.value);
    } else if ("begin" in change) {
      const { hash, bodyHash, reply, createdAtUnixMs } = change.row;
      const begun = sql.beginIdempotency.run(
        hash,
        bodyHash,
        reply?.status ?? null,
        reply?.body ?? null,
        createdAtUnixMs,
      );
      if (begun.changes === 0) throw new IdempotencyConflict(hash);
    } else if ("finish" in change) {
      // A row that was pruned meanwhile has nobody left to replay to, so zero rows is fine.
      sql.finishIdempotency.run(change.reply.status, change.reply.body, change.hash);
    } else {
      const { atUnixMs, sandboxId, tenant, action, attributes } = change.row;
      sql.appendEvent.run(atUnixMs, sandboxId, tenant, action, JSON.stringify(attributes));
    }
  }

  #put(change: Extract<Change, { put: string }>): void {
    const sql = this.#statements;
    if (change.put === "record") {
      const { id, generation, tenant, body } = change.row;
      sql.putRecord.run(id, generation, tenant, JSON.stringify(body));
    } else if (change.put === "secret") {
      sql.putSecret.run(change.id, change.name, change.value);
    } else if (change.put === "pool") {
      sql.putPool.run(change.row.id, JSON.stringify(change.row.body));
    } else {
      const { owner, kind, name, seq, data, state } = change.row;
      sql.putResource.run(owner, kind, name, seq, JSON.stringify(data), state);
    }
  }

  #remove(change: Extract<Change, { remove: string }>): void {
    const sql = this.#statements;
    switch (change.remove) {
      case "record":
        sql.removeRecord.run(change.id);
        return;
      case "secrets":
        sql.removeSecrets.run(change.id);
        return;
      case "resource":
        sql.removeResource.run(change.owner, change.kind, change.name);
        return;
      case "idempotency":
        sql.removeIdempotency.run(change.hash);
        return;
      case "pool":
        sql.removePool.run(change.id);
        return;
    }
  }
}

function prepare(db: Database) {
  const statement = (sql: string): Statement<unknown, Value[]> => db.prepare<unknown, Value[]>(sql);
  return {
    putRecord: statement("INSERT OR REPLACE INTO records (id, generation, tenant, body) VALUES (?, ?, ?, ?)"),
    removeRecord: statement("DELETE FROM records WHERE id = ?"),
    putSecret: statement("INSERT OR REPLACE INTO secrets (id, name, value) VALUES (?, ?, ?)"),
    removeSecrets: statement("DELETE FROM secrets WHERE id = ?"),
    putResource: statement(
      "INSERT OR REPLACE INTO resources (owner, kind, name, seq, data, state) VALUES (?, ?, ?, ?, ?, ?)",
    ),
    removeResource: statement("DELETE FROM resources WHERE owner = ? AND kind = ? AND name = ?"),
    takeLease: statement("INSERT INTO leases (kind, value, owner, state) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"),
    quarantineLeases: statement("UPDATE leases SET state = 'quarantined' WHERE owner = ?"),
    freeLease: statement("DELETE FROM leases WHERE kind = ? AND value = ?"),
    beginIdempotency: statement(
      "INSERT INTO idempotency (hash, body_hash, status, body, created_at_unix_ms) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
    ),
    finishIdempotency: statement("UPDATE idempotency SET status = ?, body = ? WHERE hash = ?"),
    removeIdempotency: statement("DELETE FROM idempotency WHERE hash = ?"),
    putPool: statement("INSERT OR REPLACE INTO pools (id, body) VALUES (?, ?)"),
    removePool: statement("DELETE FROM pools WHERE id = ?"),
    appendEvent: statement(
      "INSERT INTO events (at_unix_ms, sandbox_id, tenant, action, attributes) VALUES (?, ?, ?, ?, ?)",
    ),
  };
}
