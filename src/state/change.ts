// What can be written to the state, as data. A commit is a list of changes that becomes durable as a whole or not at
// all; the core composes the transactions (accept, ready, failed, removed) from these.
import type { JsonObject } from "../contracts/json.ts";

/** A sandbox record as stored; `body` is the core's own shape, opaque to the store. */
export interface RecordRow {
  readonly id: string;
  readonly generation: string;
  readonly tenant: string | null;
  readonly body: JsonObject;
}

/** One journal row; `seq` orders the rows of an owner and is given by the core. */
export interface ResourceRow {
  /** `<sandbox id>/<generation>` or `<sandbox id>/<generation>/<operation id>`. */
  readonly owner: string;
  readonly seq: number;
  readonly kind: string;
  readonly name: string;
  readonly data: JsonObject;
  /** `intent` before the thing is acquired, `held` after. Both are released alike. */
  readonly state: "intent" | "held";
}

/** A host-wide value that one owner holds. `quarantined` values wait until they are known to be clean. */
export interface LeaseRow {
  readonly kind: string;
  readonly value: number;
  readonly owner: string;
  readonly state: "leased" | "quarantined";
}

export interface IdempotencyRow {
  /** SHA-256 (hex) of scope, method, path and key. */
  readonly hash: string;
  readonly bodyHash: string;
  /** Null while the request is in flight. */
  readonly reply: { readonly status: number; readonly body: string } | null;
  readonly createdAtUnixMs: number;
}

/** A warm pool as stored; `body` is the core's own shape, opaque to the store. */
export interface PoolRow {
  readonly id: string;
  readonly body: JsonObject;
}

export interface EventRow {
  readonly atUnixMs: number;
  readonly sandboxId: string | null;
  readonly tenant: string | null;
  readonly action: string;
  readonly attributes: JsonObject;
}

export type Change =
  | { readonly put: "record"; readonly row: RecordRow }
  | { readonly remove: "record"; readonly id: string }
  /** A secret of a sandbox (the guest token); never part of a record. */
  | { readonly put: "secret"; readonly id: string; readonly name: string; readonly value: string }
  | { readonly remove: "secrets"; readonly id: string }
  | { readonly put: "resource"; readonly row: ResourceRow }
  | { readonly remove: "resource"; readonly owner: string; readonly kind: string; readonly name: string }
  /** Fails the whole commit with `LeaseConflict` when the value is leased or quarantined. */
  | { readonly take: "lease"; readonly row: LeaseRow }
  | { readonly quarantine: "leases"; readonly owner: string }
  | { readonly free: "lease"; readonly kind: string; readonly value: number }
  /** Fails the whole commit with `IdempotencyConflict` when the hash exists. */
  | { readonly begin: "idempotency"; readonly row: IdempotencyRow }
  | {
      readonly finish: "idempotency";
      readonly hash: string;
      readonly reply: { readonly status: number; readonly body: string };
    }
  | { readonly remove: "idempotency"; readonly hash: string }
  | { readonly put: "pool"; readonly row: PoolRow }
  | { readonly remove: "pool"; readonly id: string }
  | { readonly append: "event"; readonly row: EventRow };

export interface EventQuery {
  readonly sandboxId?: string;
  readonly actionPrefix?: string;
  readonly sinceUnixMs?: number;
  /** Null or absent: of every tenant. */
  readonly tenant?: string | null;
  readonly limit: number;
}

/** Everything durable, read once at start. */
export interface StoredState {
  readonly records: readonly RecordRow[];
  readonly secrets: readonly { readonly id: string; readonly name: string; readonly value: string }[];
  readonly resources: readonly ResourceRow[];
  readonly leases: readonly LeaseRow[];
  readonly pools: readonly PoolRow[];
  /** Hashes of the idempotency rows without a reply: requests that an earlier agent process never answered. */
  readonly inFlight: readonly string[];
}

/** The durable state. Nothing is acknowledged before it is committed. */
export interface Store {
  load(): Promise<StoredState>;
  /** Resolves after the changes are on disk; rejects with `AgentError` (`STATE_UNAVAILABLE`, `HOST_FULL`) or a conflict. */
  commit(changes: readonly Change[]): Promise<void>;
  idempotency(hash: string): Promise<IdempotencyRow | null>;
  /** The newest `limit` matching rows, oldest of them first. */
  events(query: EventQuery): Promise<readonly EventRow[]>;
  /** Removes idempotency rows and events that are past their age or size limit. */
  prune(nowUnixMs: number): Promise<void>;
  close(): Promise<void>;
}
