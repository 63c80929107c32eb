// The tables of `agent.db` and how older files become current: forward-only migrations counted by `user_version`.
import type { Database } from "bun:sqlite";
import { AgentError } from "../errors/agent-error.ts";

/** Migration n brings a file from `user_version` n to n + 1. Entries are only ever appended. */
const migrations: readonly string[] = [
  `
  CREATE TABLE records (
    id TEXT PRIMARY KEY,
    generation TEXT NOT NULL,
    tenant TEXT,
    body TEXT NOT NULL
  ) STRICT;

  CREATE TABLE secrets (
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (id, name)
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE resources (
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    seq INTEGER NOT NULL,
    data TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('intent', 'held')),
    PRIMARY KEY (owner, kind, name)
  ) STRICT, WITHOUT ROWID;

  CREATE TABLE leases (
    kind TEXT NOT NULL,
    value INTEGER NOT NULL,
    owner TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('leased', 'quarantined')),
    PRIMARY KEY (kind, value)
  ) STRICT, WITHOUT ROWID;
  CREATE INDEX leases_owner ON leases (owner);

  CREATE TABLE idempotency (
    hash TEXT PRIMARY KEY,
    body_hash TEXT NOT NULL,
    status INTEGER,
    body TEXT,
    created_at_unix_ms INTEGER NOT NULL,
    CHECK ((status IS NULL) = (body IS NULL))
  ) STRICT;
  CREATE INDEX idempotency_age ON idempotency (created_at_unix_ms);

  CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_unix_ms INTEGER NOT NULL,
    sandbox_id TEXT,
    tenant TEXT,
    action TEXT NOT NULL,
    attributes TEXT NOT NULL
  ) STRICT;
  CREATE INDEX events_sandbox ON events (sandbox_id, seq);
  CREATE INDEX events_age ON events (at_unix_ms);
  `,
  `
  CREATE TABLE pools (
    id TEXT PRIMARY KEY,
    body TEXT NOT NULL
  ) STRICT;
  `,
];

/** What a current file says in `user_version`. */
export const SCHEMA_VERSION = migrations.length;

/** Brings the file up to date, one transaction a step. Throws `STATE_NEWER` for a file of a later version. */
export function migrate(db: Database): void {
  const found = userVersion(db);
  if (found > SCHEMA_VERSION) {
    throw new AgentError("STATE_NEWER", undefined, { details: { found, supported: SCHEMA_VERSION } });
  }
  for (let version = found; version < SCHEMA_VERSION; version++) {
    const statements = migrations[version] ?? "";
    db.transaction(() => {
      db.run(statements);
      db.run(`PRAGMA user_version = ${version + 1}`);
    }).immediate();
  }
}

function userVersion(db: Database): number {
  return (db.query("PRAGMA user_version").get() as { user_version: number }).user_version;
}
