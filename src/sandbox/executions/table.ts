// The executions of one sandbox: those that run and those that ran, by id, within their bounds. The table is found again
// on disk by every agent process, and joined with what the guest still knows.
import { limits } from "../../config/limits.ts";
import type { ExecutionStart, GuestExecution } from "../../contracts/executions.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import { type CommandEnd, commandBegan, commandEnded, tellIdle, UNSEEN_END } from "../activity.ts";
import { nextTurn } from "../clock.ts";
import type { Context } from "../context.ts";
import { atOnce } from "../../contracts/at-once.ts";
import { liveOf, refreshUsage } from "../guest-access.ts";
import type { Sandbox } from "../sandbox.ts";
import { ExecutionEvents } from "./events.ts";
import { HeldExecution, REVERTED, STOPPED } from "./execution.ts";
import { GuestSide } from "./guest-side.ts";
import { Stdin } from "./input.ts";
import { Retention } from "./retention.ts";
import { RingFile } from "./ring-file.ts";
import { ExecutionRows, type FoundExecution } from "./rows.ts";
import { runsTheSame, type StoredExecution, storedExecution, storedFromGuest } from "./stored.ts";

/** One execution with what only the table needs of it. */
interface Entry {
  readonly execution: HeldExecution;
  readonly stdin: Stdin;
  readonly events: ExecutionEvents;
  /** False until it is known that the guest was asked to start it. */
  hasStarted: boolean;
  /** Settles when the guest has answered the start. */
  started: Promise<void>;
  /** The newest write of what is stored. */
  saved: Promise<void>;
}

export class ExecutionTable {
  readonly #context: Context;
  readonly #sandbox: Sandbox;
  readonly #rows: ExecutionRows;
  readonly guest: GuestSide;
  readonly #entries = new Map<string, Entry>();
  /** Those that are being forgotten, until nothing is left of them. */
  readonly #leaving = new Map<string, Promise<void>>();
  /** Those that count as commands running in the sandbox. */
  readonly #counted = new Set<HeldExecution>();
  readonly #retention = new Retention({
    all: () => this.#held(),
    forget: (execution) => this.#evict(execution),
  });
  #loading: Promise<void> | null = null;
  #closed: AgentError | null = null;
  /** The guest is being put back to an earlier state. */
  #reverting = false;

  constructor(context: Context, sandbox: Sandbox) {
    this.#context = context;
    this.#sandbox = sandbox;
    this.#rows = new ExecutionRows(context.places.executionsDir(sandbox.id), {
      all: () => this.#found(),
      failing: (error) => this.#warn(null, error, "rows of executions are not moved"),
    });
    this.guest = new GuestSide(context, sandbox);
  }

  /** Resolves when what an earlier agent process left is in the table. */
  load(): Promise<void> {
    this.#loading ??= this.#load().catch((error: unknown) => {
      this.#loading = null;
      throw error;
    });
    return this.#loading;
  }

  /** Rejects with `EXECUTION_NOT_FOUND`. */
  async find(id: string): Promise<HeldExecution> {
    return (await this.#entry(id)).execution;
  }

  async stdinOf(id: string): Promise<Stdin> {
    return (await this.#entry(id)).stdin;
  }

  /** By start, then id. */
  async list(): Promise<readonly HeldExecution[]> {
    await this.load();
    const byStart = (a: StoredExecution, b: StoredExecution): number =>
      a.startedAtUnixMs - b.startedAtUnixMs || (a.id < b.id ? -1 : 1);
    return [...this.#entries.values()].map(({ execution }) => execution).sort((a, b) => byStart(a.stored, b.stored));
  }

  /**
   * Starts an execution, or answers the one that has this id and command. Rejects with `EXECUTION_EXISTS`, with what
   * says why the sandbox serves no commands, and with the guest's refusal; then the id is free again.
   */
  async start(
    request: ExecutionStart,
    onDisconnect: StoredExecution["onDisconnect"],
  ): Promise<{ readonly execution: HeldExecution; readonly existing: boolean }> {
    await this.load();
    const known = this.#entries.get(request.id);
    if (known !== undefined) {
      if (!runsTheSame(known.execution.stored, request)) throw new AgentError("EXECUTION_EXISTS");
      await known.started;
      return { execution: known.execution, existing: true };
    }
    this.#assertRoom();
    const entry = this.#begin(request, onDisconnect);
    await entry.started;
    return { execution: entry.execution, existing: false };
  }

  /** Joins what is here with what the guest knows, after another agent process or another state of the guest. */
  async adopt(): Promise<void> {
    await this.load();
    const known = await this.guest.known();
    for (const entry of [...this.#entries.values()]) {
      const state = known?.get(entry.execution.id);
      if (this.#isOfNow(entry.execution)) await this.#goOn(entry, state, known !== null);
      else await this.#rejoin(entry, state, known !== null);
    }
    for (const [id, state] of known ?? []) {
      if (!this.#entries.has(id)) this.#adoptUnknown(state);
    }
  }

  /**
   * The guest is about to be put back to an earlier state, and the record has the incarnation that follows: readers of
   * what runs go with `REVERTED`, and nothing starts until `reverted`.
   */
  async reverting(): Promise<void> {
    await this.load();
    this.#reverting = true;
    for (const { execution } of this.#entries.values()) if (execution.running) execution.cross();
  }

  /** The guest was put back, or could not be: goes on with what it knows. */
  async reverted(): Promise<void> {
    try {
      await this.adopt();
    } finally {
      this.#reverting = false;
    }
  }

  /** The sandbox is about to be ended, which is what ends everything that runs in it. */
  sandboxEnding(): void {
    for (const { execution } of this.#entries.values()) execution.ending(STOPPED);
  }

  /** The sandbox has ended: so has everything in it. Resolves when the output that is here is stored. */
  async sandboxEnded(): Promise<void> {
    const entries = [...this.#entries.values()];
    for (const { execution } of entries) execution.end(STOPPED);
    const settled = entries.map(({ execution, saved }) => Promise.all([execution.settled(), saved]));
    const stored = Promise.all(settled).then(() => this.#rows.rest());
    await withDeadline(stored, limits.execGraceMs, "storing the output of executions").catch((error: unknown) => {
      const { message } = asAgentError(error);
      this.#context.dependencies.log.warn({ sandbox: this.#sandbox.id, error: message }, "output is not stored");
    });
  }

  /** Readers go with `error`, and nothing new is accepted; what runs goes on. */
  dismiss(error: AgentError): void {
    this.#closed ??= error;
    for (const { execution } of this.#entries.values()) execution.dismiss(error);
  }

  /** Lets go of everything. Resolves when nothing is being written. */
  async close(error: AgentError): Promise<void> {
    this.#closed ??= error;
    this.#retention.close();
    await this.#loading?.catch(() => undefined);
    await Promise.all(
      [...this.#entries.values()].map(async (entry) => {
        await entry.execution.close(error);
        await entry.saved;
        await entry.events.settled();
      }),
    );
    await this.#rows.close();
  }

  async #entry(id: string): Promise<Entry> {
    await this.load();
    const entry = this.#entries.get(id);
    if (entry === undefined) throw new AgentError("EXECUTION_NOT_FOUND");
    await entry.started;
    return entry;
  }

  async #load(): Promise<void> {
    const { record } = this.#sandbox;
    const found = await atOnce(limits.executionsLoadedAtOnce, await this.#rows.load(), (one) => this.#find(one));
    for (const entry of found) this.#entries.set(entry.execution.id, entry);
    for (const { execution } of found) {
      if (!execution.running) this.#retention.ended(execution);
      const alive = this.#sandbox.live !== null && execution.stored.run === record.run;
      if (!alive) execution.end(STOPPED);
    }
  }

  /** What ties an execution to the guest as it is now. */
  get #now(): Pick<StoredExecution, "run" | "incarnation"> {
    const { run, incarnation } = this.#sandbox.record;
    return { run, incarnation };
  }

  #isOfNow({ stored }: HeldExecution): boolean {
    return stored.run === this.#now.run && stored.incarnation === this.#now.incarnation;
  }

  async #goOn(entry: Entry, state: GuestExecution | undefined, isAnswered: boolean): Promise<void> {
    const { execution } = entry;
    if (state !== undefined) this.#started(entry);
    if (execution.running && (!isAnswered || state !== undefined)) this.#resume(execution, state ?? null);
    // The agent ended before the guest was asked, and nobody was answered: who sends the start again means this one.
    else if (execution.running && !entry.hasStarted) await this.#forget(entry);
    else if (execution.running) execution.end("the guest agent does not know the execution any more");
    else if (state !== undefined && execution.misses(state)) execution.resume(state);
  }

  /**
   * The guest was put back, before or after this execution or into the middle of it. What it knows to run goes on from
   * where it was then, with none of the output of the time that is undone; the rest is over.
   */
  async #rejoin(entry: Entry, state: GuestExecution | undefined, isAnswered: boolean): Promise<void> {
    const { execution } = entry;
    const isOver = state === undefined ? isAnswered || !execution.running : !execution.running && !runs(state);
    if (isOver) {
      execution.crossed();
      if (state !== undefined) this.guest.forget(execution.id);
      return;
    }
    execution.cross();
    this.#uncount(execution, UNSEEN_END);
    this.#retention.left(execution);
    await execution.remove();
    await entry.saved;
    const again = this.#fresh({ ...execution.stored, ...this.#now, end: null }, true);
    this.#entries.set(execution.id, again);
    this.#save(again);
    this.#resume(again.execution, state ?? null);
  }

  async #find({ stored, hasStarted }: FoundExecution): Promise<Entry> {
    const find = (channel: "stdout" | "stderr"): Promise<RingFile> =>
      RingFile.find(this.#rows.outputPath(stored.id, channel), this.#retention.budget, keptMaxBytes(stored));
    const [stdout, stderr] = await Promise.all([find("stdout"), find("stderr")]);
    return this.#hold(stored, { stdout, stderr }, hasStarted);
  }

  #fresh(stored: StoredExecution, hasStarted: boolean): Entry {
    const create = (channel: "stdout" | "stderr"): RingFile =>
      RingFile.create(this.#rows.outputPath(stored.id, channel), this.#retention.budget, keptMaxBytes(stored));
    return this.#hold(stored, { stdout: create("stdout"), stderr: create("stderr") }, hasStarted);
  }

  #hold(
    stored: StoredExecution,
    files: { readonly stdout: RingFile; readonly stderr: RingFile },
    hasStarted: boolean,
  ): Entry {
    const { clock, log } = this.#context.dependencies;
    const execution = new HeldExecution(stored, files, {
      sandboxId: this.#sandbox.id,
      log,
      nowUnixMs: () => clock.nowUnixMs(),
      guest: () => this.guest.executions(),
      ended: () => this.#ended(entry),
      changed: () => this.#save(entry),
    });
    const entry: Entry = {
      execution,
      stdin: new Stdin(execution, () => this.guest.executions()),
      events: new ExecutionEvents(this.#context, this.#sandbox),
      hasStarted,
      started: Promise.resolve(),
      saved: Promise.resolve(),
    };
    return entry;
  }

  #assertOpen(): void {
    if (this.#closed !== null) throw this.#closed;
    if (this.#reverting) throw new AgentError("SANDBOX_BUSY", "the sandbox is being put back to an earlier state");
  }

  #assertRoom(): void {
    this.#assertOpen();
    liveOf(this.#sandbox);
    if (this.#sandbox.runningCommands >= limits.runningExecutionsMax) {
      throw new AgentError("SANDBOX_BUSY", `${limits.runningExecutionsMax} commands are running in the sandbox`);
    }
    if (this.#entries.size >= limits.executionsKeptMax && !this.#retention.makePlace()) {
      throw new AgentError("SANDBOX_BUSY", "every execution that is kept is being read");
    }
  }

  #begin(request: ExecutionStart, onDisconnect: StoredExecution["onDisconnect"]): Entry {
    const { id, command, argv, tty, stdin, block } = request;
    const entry = this.#fresh(
      storedExecution({
        id,
        ...(command !== undefined && { command }),
        ...(argv !== undefined && { argv: [...argv] }),
        tty: tty !== undefined,
        onDisconnect,
        overflow: block ? "block" : "ring",
        ...this.#now,
        startedAtUnixMs: this.#context.dependencies.clock.nowUnixMs(),
        end: null,
        stdin: { bytesWritten: 0, closed: !stdin },
      }),
      false,
    );
    this.#entries.set(id, entry);
    this.#count(entry.execution);
    entry.started = this.#launch(entry, request).catch(async (error: unknown) => {
      this.#uncount(entry.execution, { error: asAgentError(error).message });
      tellIdle(this.#context, this.#sandbox);
      await this.#forget(entry);
      throw error;
    });
    return entry;
  }

  /** What is stored comes first, so that an agent that is killed meanwhile knows what it finds in the guest. */
  async #launch(entry: Entry, request: ExecutionStart): Promise<void> {
    const { execution, events } = entry;
    await this.#leaving.get(execution.id);
    await this.#rows.begin(execution.stored);
    const state = await this.guest.start(request);
    this.#started(entry);
    this.#assertOpen();
    execution.begin(state, this.#context.dependencies.clock.nowUnixMs());
    events.started(execution);
  }

  #resume(execution: HeldExecution, state: GuestExecution | null): void {
    this.#count(execution);
    execution.resume(state);
  }

  /** Something that the guest runs and the disk does not know of, because the host lost power or files. */
  #adoptUnknown(state: GuestExecution): void {
    if (!runs(state)) {
      this.guest.forget(state.id);
      return;
    }
    const entry = this.#fresh(storedFromGuest(state, this.#now), true);
    this.#entries.set(state.id, entry);
    this.#save(entry);
    this.#resume(entry.execution, state);
  }

  #ended(entry: Entry): void {
    const { exitCode = null, signal = null, error = null } = entry.execution.stored.end ?? {};
    let end: CommandEnd = error === null ? UNSEEN_END : { error };
    if (exitCode !== null) end = this.#sandbox.lastExit = { code: exitCode };
    else if (signal !== null) end = this.#sandbox.lastExit = { signal };
    this.#uncount(entry.execution, end);
    void entry.events.exited(entry.execution).then(() => tellIdle(this.#context, this.#sandbox));
    refreshUsage(this.#context, this.#sandbox);
    if (this.#entries.get(entry.execution.id) === entry) this.#retention.ended(entry.execution);
  }

  #count(execution: HeldExecution): void {
    if (this.#counted.has(execution)) return;
    this.#counted.add(execution);
    commandBegan(this.#context, this.#sandbox);
  }

  #uncount(execution: HeldExecution, end: CommandEnd): void {
    if (this.#counted.delete(execution)) commandEnded(this.#sandbox, end);
  }

  #started(entry: Entry): void {
    if (entry.hasStarted) return;
    entry.hasStarted = true;
    this.#write(entry, () => this.#rows.started(entry.execution.id));
  }

  #save(entry: Entry): void {
    this.#write(entry, () => this.#rows.keep(entry.execution.stored));
  }

  /** In order; a failure costs what was to be remembered after a restart, and is logged. */
  #write(entry: Entry, write: () => Promise<void>): void {
    const { id } = entry.execution;
    entry.saved = nextTurn()
      .then(async () => {
        if (this.#entries.get(id) === entry) await write();
      })
      .catch((error: unknown) => this.#warn(id, error, "an execution is not stored"));
  }

  #warn(execution: string | null, error: unknown, what: string): void {
    const { log } = this.#context.dependencies;
    log.warn({ sandbox: this.#sandbox.id, ...(execution !== null && { execution }), error: String(error) }, what);
  }

  *#found(): Iterable<FoundExecution> {
    for (const entry of [...this.#entries.values()]) {
      const { execution, hasStarted } = entry;
      if (this.#entries.get(execution.id) === entry) yield { stored: execution.stored, hasStarted };
    }
  }

  *#held(): Iterable<HeldExecution> {
    for (const { execution } of this.#entries.values()) yield execution;
  }

  #evict({ id }: Pick<HeldExecution, "id">): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    this.guest.forget(id);
    void this.#forget(entry);
  }

  /** Its room in the budget is free when this returns, if it is idle. */
  #forget(entry: Entry): Promise<void> {
    const { id } = entry.execution;
    this.#entries.delete(id);
    this.#retention.left(entry.execution);
    const gone = Promise.all([entry.execution.remove(), this.#rows.forget(id)])
      .catch((error: unknown) => this.#warn(id, error, "files of an execution stay"))
      .then(() => {
        if (this.#leaving.get(id) === gone) this.#leaving.delete(id);
      });
    this.#leaving.set(id, gone);
    return gone;
  }
}

function keptMaxBytes({ overflow }: StoredExecution): number {
  return overflow === "block" ? limits.executionBlockRingMaxBytes : limits.executionRingMaxBytes;
}

function runs({ exitedAtUnixMs }: GuestExecution): boolean {
  return exitedAtUnixMs === null;
}
