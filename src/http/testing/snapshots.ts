// Snapshots in memory: tags by sandbox, of those sandboxes that have an entry; others answer as a backend without any.
import type { Snapshot } from "../../contracts/backend.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { Caller, IdempotentRequest, Operations, VmRecord } from "../../sandbox/operations.ts";
import type { Store } from "../../state/change.ts";
import type { SnapshotOperations } from "../../sandbox/snapshots/operations.ts";

export class FakeSnapshots implements SnapshotOperations {
  readonly tags = new Map<string, Snapshot[]>();
  /** Sandboxes that have to be stopped first. */
  readonly running = new Set<string>();

  constructor(
    private readonly operations: Operations,
    private readonly store: Pick<Store, "commit">,
  ) {}

  async takeSnapshot(
    _caller: Caller,
    id: string,
    tag: string,
    idempotency?: IdempotentRequest<Snapshot>,
  ): Promise<Snapshot> {
    const kept = this.#of(id);
    if (tag === "") throw new AgentError("BAD_REQUEST");
    if (kept.some((snapshot) => snapshot.tag === tag)) throw new AgentError("SNAPSHOT_EXISTS");
    const snapshot = { tag, takenAtUnixMs: 1_800_000_000_000, bytes: 4096 };
    kept.push(snapshot);
    if (idempotency !== undefined) {
      const { hash, bodyHash, reply } = idempotency;
      const row = { hash, bodyHash, reply: reply(snapshot), createdAtUnixMs: Date.now() };
      await this.store.commit([{ begin: "idempotency", row }]);
    }
    return snapshot;
  }

  async snapshots(_caller: Caller, id: string): Promise<readonly Snapshot[]> {
    return this.#of(id);
  }

  async removeSnapshot(_caller: Caller, id: string, tag: string): Promise<void> {
    const kept = this.#of(id);
    const index = kept.findIndex((snapshot) => snapshot.tag === tag);
    if (index < 0) throw new AgentError("SNAPSHOT_NOT_FOUND");
    kept.splice(index, 1);
  }

  async restoreSnapshot(caller: Caller, id: string, tag: string): Promise<VmRecord> {
    if (!this.#of(id).some((snapshot) => snapshot.tag === tag)) throw new AgentError("SNAPSHOT_NOT_FOUND");
    return this.operations.get(caller, id);
  }

  async startFromSnapshot(caller: Caller, id: string, tag: string): Promise<VmRecord> {
    if (this.running.has(id)) throw new AgentError("RESTORE_NEEDS_STOP");
    return await this.restoreSnapshot(caller, id, tag);
  }

  #of(id: string): Snapshot[] {
    const kept = this.tags.get(id);
    if (kept === undefined) throw new AgentError("NOT_SUPPORTED", "this backend has no snapshots");
    return kept;
  }
}
