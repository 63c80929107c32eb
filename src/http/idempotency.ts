// Idempotency-Key: the first success of a request is stored before it is answered, and the same request with the same
// key gets the stored answer again for 24 hours, also after a restart.
//
// The transport only looks rows up. The core gets an `IdempotentRequest` and commits `begin` with the first transaction
// of the work and `finish`, with the reply that the transport renders, in the transaction that makes the result durable;
// when the work fails it removes the row. After a crash the core settles the rows of unfinished work before the agent
// listens, so a row without a reply belongs to work in progress.
import { createHash } from "node:crypto";
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Caller } from "../sandbox/operations.ts";
import type { IdempotencyRow, Store } from "../state/change.ts";

const KEY_PATTERN = /^[\x21-\x7e]{1,255}$/;

export type StoredReply = NonNullable<IdempotencyRow["reply"]>;

/** Which request this is: the key counts per tenant or actor, method and path. */
export interface KeyedRequest {
  readonly key: string;
  readonly caller: Caller;
  readonly method: string;
  readonly path: string;
  readonly body: Uint8Array;
}

/** The key of one request while it is worked on. */
export interface Claim {
  /** The stored reply of an earlier success, or null. */
  readonly stored: StoredReply | null;
  readonly hash: string;
  readonly bodyHash: string;
}

export class Idempotency {
  /** Hashes that this process is working on. */
  readonly #inFlight = new Set<string>();

  constructor(
    private readonly store: Pick<Store, "idempotency" | "commit">,
    private readonly nowUnixMs: () => number = Date.now,
  ) {}

  /**
   * Runs `work` while the key is held. Rejects with `IDEMPOTENCY_KEY_INVALID`, `IDEMPOTENCY_IN_FLIGHT`,
   * `IDEMPOTENCY_MISMATCH`, or as `work` does.
   */
  async hold<T>(request: KeyedRequest, work: (claim: Claim) => Promise<T>): Promise<T> {
    if (!KEY_PATTERN.test(request.key)) throw new AgentError("IDEMPOTENCY_KEY_INVALID");
    const hash = scopedHash(request);
    if (this.#inFlight.has(hash)) throw new AgentError("IDEMPOTENCY_IN_FLIGHT");
    this.#inFlight.add(hash);
    try {
      const bodyHash = sha256Hex(request.body);
      const row = await this.#lookUp(hash);
      if (row !== null && row.bodyHash !== bodyHash) throw new AgentError("IDEMPOTENCY_MISMATCH");
      if (row !== null && row.reply === null) throw new AgentError("IDEMPOTENCY_IN_FLIGHT");
      return await work({ stored: row?.reply ?? null, hash, bodyHash });
    } finally {
      this.#inFlight.delete(hash);
    }
  }

  /** The row of a hash. One that is past its time is removed, so that the core can begin a new one. */
  async #lookUp(hash: string): Promise<IdempotencyRow | null> {
    const row = await this.store.idempotency(hash);
    if (row === null || row.reply === null) return row;
    if (this.nowUnixMs() - row.createdAtUnixMs < limits.idempotencyKeepMs) return row;
    await this.store.commit([{ remove: "idempotency", hash }]);
    return null;
  }
}

function scopedHash({ caller, method, path, key }: KeyedRequest): string {
  const scope = caller.tenant !== null ? ["tenant", caller.tenant] : ["actor", caller.actor];
  return sha256Hex(JSON.stringify([...scope, method, path, key]));
}

function sha256Hex(data: string | Uint8Array): string {
  return createHash("sha256").update(data).digest("hex");
}
