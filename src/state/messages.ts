// What the store and its writer thread say to each other: one request, one reply with the same id, and errors as data.
import { AgentError } from "../errors/agent-error.ts";
import type { ErrorCode } from "../errors/catalogue.ts";
import type { JsonObject } from "../contracts/json.ts";
import type { EventQuery } from "./change.ts";
import { IdempotencyConflict, LeaseConflict } from "./conflicts.ts";

export type Request =
  | { readonly op: "open"; readonly stateDir: string; readonly ballastBytes: number }
  /** Each list is the JSON of a `Change[]`, fixed at the moment of the call. */
  | { readonly op: "commit"; readonly lists: readonly string[] }
  | { readonly op: "load" }
  | { readonly op: "idempotency"; readonly hash: string }
  | { readonly op: "events"; readonly query: EventQuery }
  | { readonly op: "prune"; readonly nowUnixMs: number }
  | { readonly op: "close" };

export type Reply =
  | { readonly id: number; readonly value: unknown }
  | { readonly id: number; readonly failure: Failure }
  /** The file can no longer be trusted; the writer has ended. */
  | { readonly fatal: string };

/** The value of a commit's reply. */
export interface CommitReply {
  readonly outcomes: readonly (Failure | null)[];
  readonly full: boolean;
}

export type Failure =
  | { readonly lease: { readonly kind: string; readonly value: number } }
  | { readonly idempotency: string }
  | { readonly code: ErrorCode; readonly message: string; readonly details: JsonObject; readonly cause: string | null };

export function encodeFailure(error: AgentError | LeaseConflict | IdempotencyConflict): Failure {
  if (error instanceof LeaseConflict) return { lease: { kind: error.kind, value: error.value } };
  if (error instanceof IdempotencyConflict) return { idempotency: error.hash };
  const cause = error.cause instanceof Error ? error.cause.message : null;
  return { code: error.code, message: error.message, details: error.details, cause };
}

export function decodeFailure(failure: Failure): AgentError | LeaseConflict | IdempotencyConflict {
  if ("lease" in failure) return new LeaseConflict(failure.lease.kind, failure.lease.value);
  if ("idempotency" in failure) return new IdempotencyConflict(failure.idempotency);
  const cause = failure.cause === null ? undefined : new Error(failure.cause);
  return new AgentError(failure.code, failure.message, { details: failure.details, cause });
}
