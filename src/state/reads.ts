// Everything that is read from `agent.db`, as the types of `change.ts`.
import type { Database } from "bun:sqlite";
import { limits } from "../config/limits.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { EventQuery, EventRow, IdempotencyRow, LeaseRow, RecordRow, ResourceRow, StoredState } from "./change.ts";

/** Everything that the core holds in memory, each list in a stable order; resources by owner and `seq`. */
export function readState(db: Database): StoredState {
  const records = db.query("SELECT id, generation, tenant, body FROM records ORDER BY id").all();
  const secrets = db.query("SELECT id, name, value FROM secrets ORDER BY id, name").all();
  const resources = db
    .query("SELECT owner, seq, kind, name, data, state FROM resources ORDER BY owner, seq, kind, name")
    .all();
  const leases = db.query("SELECT kind, value, owner, state FROM leases ORDER BY kind, value").all();
  const pools = db.query("SELECT id, body FROM pools ORDER BY id").all();
  const inFlight = db.query("SELECT hash FROM idempotency WHERE status IS NULL ORDER BY hash").all();
  return {
    records: (records as StoredRecord[]).map((row) => ({ ...row, body: parseObject(row.body) })),
    secrets: secrets as StoredState["secrets"],
    resources: (resources as StoredResource[]).map((row) => ({ ...row, data: parseObject(row.data) })),
    leases: leases as LeaseRow[],
    pools: (pools as StoredPool[]).map((row) => ({ id: row.id, body: parseObject(row.body) })),
    inFlight: (inFlight as { hash: string }[]).map((row) => row.hash),
  };
}

export function readIdempotency(db: Database, hash: string): IdempotencyRow | null {
  const row = db
    .query("SELECT body_hash, status, body, created_at_unix_ms FROM idempotency WHERE hash = ?")
    .get(hash) as StoredIdempotency | null;
  if (row === null) return null;
  const reply = row.status === null ? null : { status: row.status, body: row.body ?? "" };
  return { hash, bodyHash: row.body_hash, reply, createdAtUnixMs: row.created_at_unix_ms };
}

/** The newest matching rows, oldest of them first. */
export function readEvents(db: Database, query: EventQuery): EventRow[] {
  const conditions: string[] = [];
  const values: (string | number)[] = [];
  const where = (condition: string, value: string | number | null | undefined): void => {
    if (value === null || value === undefined) return;
    conditions.push(condition);
    values.push(value);
  };
  where("sandbox_id = ?", query.sandboxId);
  where("tenant = ?", query.tenant);
  where("at_unix_ms >= ?", query.sinceUnixMs);
  if (query.actionPrefix) {
    conditions.push("substr(action, 1, ?) = ?");
    values.push([...query.actionPrefix].length, query.actionPrefix);
  }
  values.push(Math.max(0, Math.min(query.limit, limits.eventsPageMax)));
  const rows = db
    .prepare(
      `SELECT at_unix_ms, sandbox_id, tenant, action, attributes FROM events
       ${conditions.length > 0 ? `WHERE ${conditions.join(" AND ")}` : ""} ORDER BY seq DESC LIMIT ?`,
    )
    .all(...values) as StoredEvent[];
  return rows.reverse().map((row) => ({
    atUnixMs: row.at_unix_ms,
    sandboxId: row.sandbox_id,
    tenant: row.tenant,
    action: row.action,
    attributes: parseObject(row.attributes),
  }));
}

type StoredRecord = Omit<RecordRow, "body"> & { body: string };
interface StoredPool {
  id: string;
  body: string;
}
type StoredResource = Omit<ResourceRow, "data"> & { data: string };
interface StoredIdempotency {
  body_hash: string;
  status: number | null;
  body: string | null;
  created_at_unix_ms: number;
}
interface StoredEvent {
  at_unix_ms: number;
  sandbox_id: string | null;
  tenant: string | null;
  action: string;
  attributes: string;
}

function parseObject(text: string): JsonObject {
  return JSON.parse(text) as JsonObject;
}
