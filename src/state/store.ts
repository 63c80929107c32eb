// The store as the rest of the agent sees it: asynchronous, one writer thread, group commit. While a group is being
// written the next one gathers, so a hundred commits at once cost a few transactions and never block the event loop.
//
// When the writer ends unexpectedly, what became of the group in flight is unknown. The store then fails for good:
// everything rejects with `STATE_UNAVAILABLE` and `failed` resolves, so that the agent can exit and come back through
// reconcile, which trusts only the file. Sandboxes survive that; a store that guessed would not.
import { limits } from "../config/limits.ts";
import type { Logger } from "../contracts/log.ts";
import { AgentError } from "../errors/agent-error.ts";
import type { Change, EventQuery, EventRow, IdempotencyRow, Store, StoredState } from "./change.ts";
import { decodeFailure, type CommitReply, type Reply, type Request } from "./messages.ts";

/**
 * The compiled binary is built with `--root .` at the top of the repository and with `./src/state/writer.ts` as a second
 * entry point, which then keeps its path. Always an absolute URL: a relative one would also be looked up on disk.
 */
const WRITER_URL = import.meta.url.startsWith("file:///$bunfs/")
  ? new URL("./src/state/writer.js", import.meta.url).href
  : new URL("./writer.ts", import.meta.url).href;

export interface StoreOptions {
  /** Absolute; made when missing, 0700. The caller holds its lock. */
  readonly stateDir: string;
  readonly log: Logger;
  /** Bytes kept in reserve for a full disk. */
  readonly ballastBytes?: number;
}

/** Opens the state. Rejects with `STATE_NEWER`, `STATE_LOCKED`, `HOST_FULL` or `STATE_UNAVAILABLE`. */
export async function openStore(options: StoreOptions): Promise<SqliteStore> {
  const store = new SqliteStore(new Worker(WRITER_URL, { name: "fluxvm-state" }), options.log);
  await store.open(options.stateDir, options.ballastBytes ?? limits.ballastBytes);
  return store;
}

interface Waiting {
  readonly list: string;
  readonly resolve: () => void;
  readonly reject: (error: Error) => void;
}

interface Asked {
  readonly resolve: (value: unknown) => void;
  readonly reject: (error: Error) => void;
}

export class SqliteStore implements Store {
  readonly #worker: Worker;
  readonly #log: Logger;
  readonly #asked = new Map<number, Asked>();
  readonly #failed = Promise.withResolvers<AgentError>();
  #lastId = 0;
  #waiting: Waiting[] = [];
  #writing: Promise<void> | null = null;
  #full = false;
  #failure: AgentError | null = null;
  #closing: Promise<void> | null = null;

  /** `worker` runs `writer.ts` and is the store's from here on. */
  constructor(worker: Worker, log: Logger) {
    this.#worker = worker;
    this.#log = log;
    worker.onmessage = (event: MessageEvent<Reply>) => this.#receive(event.data);
    worker.onerror = (event) => this.#fail(`the writer crashed: ${event.message}`);
    worker.addEventListener("close", () => this.#fail("the writer ended"));
  }

  /** Resolves, never rejects, when the store has failed for good and the agent has to be restarted. */
  get failed(): Promise<AgentError> {
    return this.#failed.promise;
  }

  async open(stateDir: string, ballastBytes: number): Promise<void> {
    try {
      const { full } = (await this.#ask({ op: "open", stateDir, ballastBytes })) as { full: boolean };
      this.#noteRoom(full);
    } catch (error) {
      this.#end(new AgentError("STATE_UNAVAILABLE", "the state is not open"));
      throw error;
    }
  }

  async load(): Promise<StoredState> {
    return (await this.#ask({ op: "load" })) as StoredState;
  }

  commit(changes: readonly Change[]): Promise<void> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    if (this.#waiting.length >= limits.commitsWaitingMax) {
      return Promise.reject(new AgentError("STATE_UNAVAILABLE", "too many writes are waiting"));
    }
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    // As text, so that what is written is what the caller had at this moment.
    this.#waiting.push({ list: JSON.stringify(changes), resolve, reject });
    this.#writing ??= this.#writeGroups();
    return promise;
  }

  async idempotency(hash: string): Promise<IdempotencyRow | null> {
    return (await this.#ask({ op: "idempotency", hash })) as IdempotencyRow | null;
  }

  async events(query: EventQuery): Promise<readonly EventRow[]> {
    return (await this.#ask({ op: "events", query })) as EventRow[];
  }

  async prune(nowUnixMs: number): Promise<void> {
    await this.#ask({ op: "prune", nowUnixMs });
  }

  /** Writes what is waiting, closes the file and ends the writer. Later calls reject with `STATE_UNAVAILABLE`. */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  async #close(): Promise<void> {
    await this.#writing;
    if (this.#failure !== null) return;
    const closed = this.#ask({ op: "close" });
    this.#failure = new AgentError("STATE_UNAVAILABLE", "the state is closed");
    await closed;
    this.#worker.terminate();
  }

  async #writeGroups(): Promise<void> {
    // Lets the other commits of this turn of the event loop join the first group.
    await Promise.resolve();
    while (this.#waiting.length > 0) {
      const group = this.#takeGroup();
      try {
        const reply = await this.#ask({ op: "commit", lists: group.map((waiting) => waiting.list) });
        this.#settle(group, reply as CommitReply);
      } catch (error) {
        for (const waiting of group) waiting.reject(error as Error);
      }
    }
    this.#writing = null;
  }

  #takeGroup(): Waiting[] {
    let count = 0;
    let chars = 0;
    for (const waiting of this.#waiting) {
      chars += waiting.list.length;
      if (count === limits.commitGroupMax || (count > 0 && chars > limits.commitGroupMaxBytes)) break;
      count++;
    }
    return this.#waiting.splice(0, count);
  }

  #settle(group: readonly Waiting[], reply: CommitReply): void {
    this.#noteRoom(reply.full);
    for (const [index, waiting] of group.entries()) {
      const failure = reply.outcomes[index];
      if (failure === null) waiting.resolve();
      else if (failure === undefined) waiting.reject(new AgentError("STATE_UNAVAILABLE"));
      else waiting.reject(decodeFailure(failure));
    }
  }

  #noteRoom(full: boolean): void {
    if (full === this.#full) return;
    this.#full = full;
    if (full) this.#log.error({}, "the disk of the state directory is full; only releases are written");
    else this.#log.info({}, "the disk of the state directory has room again");
  }

  #ask(request: Request): Promise<unknown> {
    if (this.#failure !== null) return Promise.reject(this.#failure);
    const id = ++this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    this.#asked.set(id, { resolve, reject });
    this.#worker.postMessage({ ...request, id });
    return promise;
  }

  #receive(reply: Reply): void {
    if ("fatal" in reply) return this.#fail(reply.fatal);
    const asked = this.#asked.get(reply.id);
    this.#asked.delete(reply.id);
    if ("failure" in reply) asked?.reject(decodeFailure(reply.failure));
    else asked?.resolve(reply.value);
  }

  #fail(reason: string): void {
    if (this.#failure !== null) return;
    const failure = new AgentError("STATE_UNAVAILABLE", undefined, { cause: new Error(reason) });
    this.#log.error({ reason }, "the state store failed; the agent has to be restarted");
    this.#end(failure);
    this.#failed.resolve(failure);
  }

  #end(failure: AgentError): void {
    this.#failure = failure;
    for (const asked of this.#asked.values()) asked.reject(failure);
    this.#asked.clear();
    for (const waiting of this.#waiting.splice(0)) waiting.reject(failure);
    this.#worker.terminate();
  }
}
