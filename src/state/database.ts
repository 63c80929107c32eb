// `agent.db`: opening it safely, writing groups of commits, and what happens when the disk is full. Synchronous; the
// writer thread owns the one instance.
//
// Errors while writing are of three kinds. A conflict or a refused row fails its own list. A full disk releases the
// ballast and from then on only lists that acquire nothing are written, until the ballast can be made again. Anything
// else (an I/O error above all) leaves unknown what the file holds, so it is thrown and the store is given up.
import { Database, SQLiteError } from "bun:sqlite";
import { chmodSync, closeSync, constants, fchmodSync, lstatSync, mkdirSync, openSync } from "node:fs";
import { limits } from "../config/limits.ts";
import { AgentError } from "../errors/agent-error.ts";
import { ChangeWriter } from "./apply.ts";
import { Ballast } from "./ballast.ts";
import type { Change, EventQuery, EventRow, IdempotencyRow, StoredState } from "./change.ts";
import { IdempotencyConflict, LeaseConflict } from "./conflicts.ts";
import { readEvents, readIdempotency, readState } from "./reads.ts";
import { migrate } from "./schema.ts";

const BALLAST_RETRY_MS = 1000;

/** What became of one list of a group: null is written, an error is not written at all. */
export type Outcome = null | AgentError | LeaseConflict | IdempotencyConflict;

/** How much of what is only kept for a while is kept. */
export interface Retention {
  readonly eventsMax: number;
  readonly eventKeepMs: number;
  readonly idempotencyKeepMs: number;
  readonly idempotencyKeepMaxBytes: number;
}

export class StateDatabase {
  readonly #db: Database;
  readonly #writer: ChangeWriter;
  readonly #ballast: Ballast;
  #full: boolean;
  #ballastTriedAtMs = 0;

  private constructor(db: Database, ballast: Ballast, full: boolean) {
    this.#db = db;
    this.#writer = new ChangeWriter(db);
    this.#ballast = ballast;
    this.#full = full;
  }

  /**
   * Opens or makes `<stateDir>/agent.db` (0600, in a directory that is made 0700). Throws `STATE_NEWER`,
   * `STATE_LOCKED`, `HOST_FULL` or `STATE_UNAVAILABLE`.
   */
  static open(stateDir: string, ballastBytes: number): StateDatabase {
    const path = `${stateDir}/agent.db`;
    const ballast = new Ballast(`${stateDir}/ballast`, ballastBytes);
    try {
      makePrivate(stateDir, path);
      const db = openWithRoom(path, ballast);
      return new StateDatabase(db, ballast, !ballast.make());
    } catch (error) {
      throw openFailure(path, error);
    }
  }

  /** Whether only lists that acquire nothing are written, because the disk is full. */
  get full(): boolean {
    return this.#full;
  }

  /** Writes the lists in one transaction, each as a whole or not at all. Throws when the file can no longer be trusted. */
  commit(lists: readonly (readonly Change[])[]): Outcome[] {
    if (this.#full) this.#recoverBallast();
    try {
      return this.#transaction(lists);
    } catch (error) {
      if (!isFull(error)) throw error;
    }
    this.#releaseBallast();
    // One at a time, so that a list that is too large for the room left fails alone.
    return lists.map((list) => this.#commitAlone(list));
  }

  load(): StoredState {
    return readState(this.#db);
  }

  idempotency(hash: string): IdempotencyRow | null {
    return readIdempotency(this.#db, hash);
  }

  events(query: EventQuery): EventRow[] {
    return readEvents(this.#db, query);
  }

  /** Removes what is past the limits of age and size; also the moment to get the ballast back. Throws `HOST_FULL`. */
  prune(nowUnixMs: number, keep: Retention = limits): void {
    try {
      this.#prune(nowUnixMs, keep);
    } catch (error) {
      if (!isFull(error)) throw error;
      if (this.#full) throw new AgentError("HOST_FULL");
      this.#releaseBallast();
      return this.prune(nowUnixMs, keep);
    }
    if (this.#full) this.#recoverBallast();
  }

  close(): void {
    this.#db.close(true);
  }

  #prune(nowUnixMs: number, keep: Retention): void {
    this.#atomically(() => {
      const remove = (sql: string, limit: number): unknown => this.#db.prepare(sql).run(limit);
      remove("DELETE FROM events WHERE at_unix_ms < ?", nowUnixMs - keep.eventKeepMs);
      remove("DELETE FROM events WHERE seq <= (SELECT max(seq) FROM events) - ?", keep.eventsMax);
      remove("DELETE FROM idempotency WHERE created_at_unix_ms < ?", nowUnixMs - keep.idempotencyKeepMs);
      remove(
        `DELETE FROM idempotency WHERE hash IN (SELECT hash FROM
           (SELECT hash, sum(octet_length(body)) OVER (ORDER BY created_at_unix_ms DESC, hash) AS total
            FROM idempotency WHERE body IS NOT NULL)
         WHERE total > ?)`,
        keep.idempotencyKeepMaxBytes,
      );
    });
  }

  #releaseBallast(): void {
    this.#full = true;
    this.#ballast.release();
  }

  #commitAlone(list: readonly Change[]): Outcome {
    try {
      return this.#transaction([list])[0] ?? null;
    } catch (error) {
      if (!isFull(error)) throw error;
      return new AgentError("HOST_FULL");
    }
  }

  #transaction(lists: readonly (readonly Change[])[]): Outcome[] {
    return this.#atomically(() => lists.map((list) => this.#applyList(list)));
  }

  #applyList(list: readonly Change[]): Outcome {
    if (this.#full && list.some(acquires)) return new AgentError("HOST_FULL");
    this.#db.run("SAVEPOINT list");
    try {
      for (const change of list) this.#writer.apply(change);
    } catch (error) {
      const outcome = refusal(error);
      if (outcome === null) throw error;
      this.#db.run("ROLLBACK TO list");
      this.#db.run("RELEASE list");
      return outcome;
    }
    this.#db.run("RELEASE list");
    return null;
  }

  #atomically<T>(body: () => T): T {
    this.#db.run("BEGIN IMMEDIATE");
    try {
      const result = body();
      this.#db.run("COMMIT");
      return result;
    } catch (error) {
      // SQLite has already rolled back after some errors, a full disk among them.
      if (this.#db.inTransaction) this.#db.run("ROLLBACK");
      throw error;
    }
  }

  #recoverBallast(): void {
    const nowMs = performance.now();
    if (nowMs - this.#ballastTriedAtMs < BALLAST_RETRY_MS) return;
    this.#ballastTriedAtMs = nowMs;
    this.#full = !this.#ballast.make();
  }
}

/** True for a list that takes something new; the others are written from the ballast when the disk is full. */
function acquires(change: Change): boolean {
  return "take" in change || ("put" in change && change.put === "resource" && change.row.state === "intent");
}

/** The outcome when the error concerns this list alone, else null. */
function refusal(error: unknown): Outcome {
  if (error instanceof LeaseConflict || error instanceof IdempotencyConflict) return error;
  if (sqliteCode(error).startsWith("SQLITE_CONSTRAINT")) return new AgentError("INTERNAL", undefined, { cause: error });
  return null;
}

/** Others may pass through (workspaces lie below), and neither list nor write. */
const STATE_DIR_MODE = 0o711;

function makePrivate(stateDir: string, path: string): void {
  mkdirSync(stateDir, { recursive: true, mode: STATE_DIR_MODE });
  const found = lstatSync(stateDir);
  if (!found.isDirectory() || found.uid !== process.geteuid?.()) {
    throw new AgentError("STATE_UNAVAILABLE", `${stateDir} is not a directory that belongs to this user`);
  }
  if ((found.mode & 0o777 & ~STATE_DIR_MODE) !== 0) chmodSync(stateDir, STATE_DIR_MODE);
  // SQLite gives its other files the mode of this one.
  const file = openSync(path, constants.O_RDWR | constants.O_CREAT | constants.O_NOFOLLOW, 0o600);
  fchmodSync(file, 0o600);
  closeSync(file);
}

function openWithRoom(path: string, ballast: Ballast): Database {
  try {
    return openCurrent(path);
  } catch (error) {
    if (!isFull(error)) throw error;
    ballast.release();
    return openCurrent(path);
  }
}

function openCurrent(path: string): Database {
  const db = new Database(path, { readwrite: true, create: false });
  try {
    // Exclusive: no second process ever shares the file, and the index of the log stays in memory.
    db.run("PRAGMA locking_mode = EXCLUSIVE");
    db.run("PRAGMA journal_mode = WAL");
    db.run("PRAGMA synchronous = FULL");
    db.run("PRAGMA secure_delete = FAST");
    const check = db.query("PRAGMA quick_check(1)").get() as { quick_check: string };
    if (check.quick_check !== "ok") {
      throw new AgentError("STATE_UNAVAILABLE", `${path} is damaged: ${check.quick_check}`);
    }
    migrate(db);
    return db;
  } catch (error) {
    db.close();
    throw error;
  }
}

function openFailure(path: string, error: unknown): AgentError {
  if (error instanceof AgentError) return error;
  if (isFull(error)) return new AgentError("HOST_FULL", `no space left for ${path}`, { cause: error });
  if (sqliteCode(error).startsWith("SQLITE_BUSY")) {
    return new AgentError("STATE_LOCKED", `another process uses ${path}`, { cause: error });
  }
  const reason = error instanceof Error ? error.message : String(error);
  return new AgentError("STATE_UNAVAILABLE", `${path} cannot be opened: ${reason}`, { cause: error });
}

function isFull(error: unknown): boolean {
  return sqliteCode(error) === "SQLITE_FULL" || (error instanceof Error && "code" in error && error.code === "ENOSPC");
}

function sqliteCode(error: unknown): string {
  return error instanceof SQLiteError ? (error.code ?? "") : "";
}
