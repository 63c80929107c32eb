// The executions of one sandbox: those that run and those that ran, by id, within their bounds. The table is found again
// on disk by every agent process, and joined with what the guest still knows.
import { limits } from "../../config/limits.ts";
import type { ExecutionStart, GuestExecution, GuestExecutions } from "../../contracts/executions.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import { type CommandEnd, commandBegan, commandEnded, tellIdle } from "../activity.ts";
import { withDeadline } from "../clock.ts";
import type { Context } from "../context.ts";
import { liveOf, refreshUsage } from "../guest-access.ts";
import type { Sandbox } from "../sandbox.ts";
import { ExecutionEvents } from "./events.ts";
import { HeldExecution, STOPPED } from "./execution.ts";
import { Stdin } from "./input.ts";
import { Retention } from "./retention.ts";
import { RingFile } from "./ring-file.ts";
import { ExecutionFiles, type StoredExecution, storedExecution } from "./stored.ts";

/** One execution with what only the table needs of it. */
interface Entry {
  readonly execution: HeldExecution;
  readonly stdin: Stdin;
  readonly events: ExecutionEvents;
  /** Settles when the guest has answered the start. */
  started: Promise<void>;
  /** The newest write of what is stored. */
  saved: Promise<void>;
}

export class ExecutionTable {
  readonly #context: Context;
  readonly #sandbox: Sandbox;
  readonly #files: ExecutionFiles;
  readonly #entries = new Map<string, Entry>();
  /** Those that count as commands running in the sandbox. */
  readonly #counted = new Set<HeldExecution>();
  readonly #retention = new Retention({
    all: () => this.#held(),
    forget: (execution) => this.#evict(execution),
  });
  #loading: Promise<void> | null = null;
  #closed: AgentError | null = null;

  constructor(context: Context, sandbox: Sandbox) {
    this.#context = context;
    this.#sandbox = sandbox;
    this.#files = new ExecutionFiles(context.places.executionsDir(sandbox.id));
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
      if (!sameCommand(known.execution.stored, request)) throw new AgentError("EXECUTION_EXISTS");
      await known.started;
      return { execution: known.execution, existing: true };
    }
    this.#assertRoom();
    const entry = this.#begin(request, onDisconnect);
    await entry.started;
    return { execution: entry.execution, existing: false };
  }

  /** Goes on with what the guest of an adopted sandbox still runs. */
  async adopt(): Promise<void> {
    await this.load();
    const known = await this.#askGuest();
    for (const { execution } of this.#entries.values()) {
      const state = known?.get(execution.id);
      if (execution.running && (known === null || state !== undefined)) this.#resume(execution, state ?? null);
      else if (execution.running) execution.end("the guest agent does not know the execution any more");
      else if (state !== undefined && execution.misses(state)) execution.resume(state);
    }
    for (const [id, state] of known ?? []) {
      if (!this.#entries.has(id)) this.#adoptUnknown(state);
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
    const stored = Promise.all(entries.map(({ execution, saved }) => Promise.all([execution.settled(), saved])));
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
      [...this.#entries.values()].map(async ({ execution, saved }) => {
        await execution.close(error);
        await saved;
      }),
    );
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
    for (const stored of await this.#files.load()) {
      const entry = await this.#found(stored);
      this.#entries.set(stored.id, entry);
      const alive = this.#sandbox.live !== null && stored.incarnation === record.run;
      if (!alive) entry.execution.end(STOPPED);
    }
  }

  async #found(stored: StoredExecution): Promise<Entry> {
    const [stdout, stderr] = await Promise.all([
      RingFile.find(this.#files.outputPath(stored.id, "stdout"), this.#retention.budget),
      RingFile.find(this.#files.outputPath(stored.id, "stderr"), this.#retention.budget),
    ]);
    return this.#hold(stored, { stdout, stderr });
  }

  #fresh(stored: StoredExecution): Entry {
    const stdout = RingFile.create(this.#files.outputPath(stored.id, "stdout"), this.#retention.budget);
    const stderr = RingFile.create(this.#files.outputPath(stored.id, "stderr"), this.#retention.budget);
    return this.#hold(stored, { stdout, stderr });
  }

  #hold(stored: StoredExecution, files: { readonly stdout: RingFile; readonly stderr: RingFile }): Entry {
    const { clock, log } = this.#context.dependencies;
    const execution = new HeldExecution(stored, files, {
      sandboxId: this.#sandbox.id,
      log,
      nowUnixMs: () => clock.nowUnixMs(),
      guest: () => this.guest(),
      ended: () => this.#ended(entry),
      changed: (changed) => this.#save(entry, changed),
    });
    const entry: Entry = {
      execution,
      stdin: new Stdin(execution, () => this.guest()),
      events: new ExecutionEvents(this.#context, this.#sandbox),
      started: Promise.resolve(),
      saved: Promise.resolve(),
    };
    return entry;
  }

  /** The guest's executions. Rejects with what says why there are none. */
  async guest(): Promise<GuestExecutions> {
    const { live } = this.#sandbox;
    if (live === null) throw new AgentError("SANDBOX_GONE");
    const { executions } = await live.instance.channel();
    if (executions === undefined) throw new AgentError("NOT_SUPPORTED", "this guest agent cannot keep executions");
    return executions;
  }

  #assertRoom(): void {
    if (this.#closed !== null) throw this.#closed;
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
        incarnation: this.#sandbox.record.run,
        startedAtUnixMs: this.#context.dependencies.clock.nowUnixMs(),
        end: null,
        stdin: { bytesWritten: 0, closed: !stdin },
      }),
    );
    this.#entries.set(id, entry);
    this.#count(entry.execution);
    entry.started = this.#launch(entry, request).catch(async (error: unknown) => {
      this.#uncount(entry.execution);
      tellIdle(this.#context, this.#sandbox, { error: asAgentError(error).message });
      await this.#forget(entry);
      throw error;
    });
    return entry;
  }

  /** What is stored comes first, so that an agent that is killed meanwhile knows what it finds in the guest. */
  async #launch({ execution, events }: Entry, request: ExecutionStart): Promise<void> {
    await this.#files.create(execution.stored);
    const state = await this.#startInGuest(request);
    if (this.#closed !== null) throw this.#closed;
    execution.begin(state, this.#context.dependencies.clock.nowUnixMs());
    events.started(execution);
  }

  /** A start whose answer was lost is sent again: the guest knows it by its id. */
  async #startInGuest(request: ExecutionStart): Promise<GuestExecution> {
    for (let attempt = 1; ; attempt++) {
      try {
        const guest = await this.guest();
        return (await guest.start(request)).execution;
      } catch (cause) {
        const error = asAgentError(cause);
        if (error.code !== "GUEST_UNREACHABLE" || attempt === limits.executionStartAttemptsMax) throw error;
        await Bun.sleep(limits.executionAttachPauseMinMs * attempt);
      }
    }
  }

  async #askGuest(): Promise<ReadonlyMap<string, GuestExecution> | null> {
    try {
      const asking = this.guest().then((guest) => guest.list());
      const states = await withDeadline(asking, limits.adoptTimeoutMs, "asking for executions");
      return new Map(states.map((state) => [state.id, state]));
    } catch (cause) {
      const error = asAgentError(cause);
      if (error.code === "NOT_SUPPORTED") return new Map();
      this.#context.dependencies.log.warn({ sandbox: this.#sandbox.id, error: error.message }, "executions not listed");
      return null;
    }
  }

  #resume(execution: HeldExecution, state: GuestExecution | null): void {
    this.#count(execution);
    execution.resume(state);
  }

  /** Something that the guest runs and the disk does not know of, because the host lost power or files. */
  #adoptUnknown(state: GuestExecution): void {
    if (state.exitedAtUnixMs !== null) {
      this.#tellForgotten(state.id);
      return;
    }
    const { id, command, argv, tty, startedAtUnixMs, block, stdin } = state;
    const entry = this.#fresh(
      storedExecution({
        id,
        ...(argv === undefined ? { command: command ?? "" } : { argv: [...argv] }),
        tty,
        onDisconnect: "keep",
        overflow: block ? "block" : "ring",
        incarnation: this.#sandbox.record.run,
        startedAtUnixMs,
        end: null,
        stdin: { bytesWritten: stdin.accepted, closed: stdin.closed },
      }),
    );
    this.#entries.set(id, entry);
    this.#save(entry, entry.execution.stored);
    this.#resume(entry.execution, state);
  }

  #ended(entry: Entry): void {
    this.#uncount(entry.execution);
    const { exitCode = null, signal = null, error = null } = entry.execution.stored.end ?? {};
    let end: CommandEnd = { error: error ?? "its end was not seen" };
    if (exitCode !== null) end = this.#sandbox.lastExit = { code: exitCode };
    else if (signal !== null) end = this.#sandbox.lastExit = { signal };
    void entry.events.exited(entry.execution).then(() => tellIdle(this.#context, this.#sandbox, end));
    refreshUsage(this.#context, this.#sandbox);
    this.#retention.ended();
  }

  #count(execution: HeldExecution): void {
    this.#counted.add(execution);
    commandBegan(this.#context, this.#sandbox);
  }

  #uncount(execution: HeldExecution): void {
    if (this.#counted.delete(execution)) commandEnded(this.#sandbox);
  }

  /** One after the other; a failure costs what was to be remembered after a restart, and is logged. */
  #save(entry: Entry, stored: StoredExecution): void {
    entry.saved = entry.saved
      .then(async () => {
        if (this.#entries.get(stored.id) === entry) await this.#files.replace(stored);
      })
      .catch((error: unknown) => {
        const { log } = this.#context.dependencies;
        log.warn(
          { sandbox: this.#sandbox.id, execution: stored.id, error: String(error) },
          "an execution is not stored",
        );
      });
  }

  *#held(): Iterable<HeldExecution> {
    for (const { execution } of this.#entries.values()) yield execution;
  }

  #evict({ id }: HeldExecution): void {
    const entry = this.#entries.get(id);
    if (entry === undefined) return;
    this.#tellForgotten(id);
    void this.#forget(entry);
  }

  /** Its room in the budget is free when this returns, if it is idle. */
  async #forget(entry: Entry): Promise<void> {
    const { execution, saved } = entry;
    this.#entries.delete(execution.id);
    const removed = execution.remove();
    try {
      await Promise.all([removed, saved]);
      await this.#files.remove(execution.id);
    } catch (error) {
      const { log } = this.#context.dependencies;
      log.warn(
        { sandbox: this.#sandbox.id, execution: execution.id, error: String(error) },
        "files of an execution stay",
      );
    }
  }

  #tellForgotten(id: string): void {
    // What does not arrive is said again by the next agent process, or by the guest's own bound.
    this.guest()
      .then((guest) => guest.forget(id))
      .catch(() => undefined);
  }
}

function sameCommand(stored: StoredExecution, { command, argv }: ExecutionStart): boolean {
  return stored.command === command && Bun.deepEquals(stored.argv, argv === undefined ? undefined : [...argv]);
}
