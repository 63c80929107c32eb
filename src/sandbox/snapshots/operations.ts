// What can be asked of the snapshots of a sandbox: memory and disk at one instant, under a tag within the sandbox.
import type { Snapshot } from "../../contracts/backend.ts";
import type { Caller, IdempotentRequest, VmRecord } from "../operations.ts";

/** Every method rejects with `AgentError`; backends without snapshots are `NOT_SUPPORTED`, bad tags `BAD_REQUEST`. */
export interface SnapshotOperations {
  /** The sandbox goes on as it was, running or paused. `SNAPSHOT_EXISTS` for a tag that is taken. */
  takeSnapshot(caller: Caller, id: string, tag: string, idempotency?: IdempotentRequest<Snapshot>): Promise<Snapshot>;
  /** By time; of a sandbox in any state. */
  snapshots(caller: Caller, id: string): Promise<readonly Snapshot[]>;
  removeSnapshot(caller: Caller, id: string, tag: string): Promise<void>;
  /**
   * Puts memory and disk back. A stopped sandbox is started from the snapshot; one that runs is put back in place where
   * its backend can, and is `RESTORE_NEEDS_STOP` elsewhere. `DRY_RUN_BUSY` while another restore or a dry-run goes on.
   */
  restoreSnapshot(caller: Caller, id: string, tag: string): Promise<VmRecord>;
  /** Starts a sandbox that does not run from a snapshot. */
  startFromSnapshot(caller: Caller, id: string, tag: string): Promise<VmRecord>;
}
