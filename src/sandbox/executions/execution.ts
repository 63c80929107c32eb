// One execution as the agent holds it: what is known of its process, its two outputs, and who reads them. Its end is
// told once: as the guest saw it, or as an error when the sandbox ended first.
import { limits } from "../../config/limits.ts";
import type { GuestExecution, GuestExecutions, OutputOffsets } from "../../contracts/executions.ts";
import type { Logger } from "../../contracts/log.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import { Feed } from "./feed.ts";
import type { AttachRequest, Execution, ExecutionFrame, ExecutionReader, StdinStatus } from "./operations.ts";
import { Output } from "./output.ts";
import { OutputReader, type ReadableExecution } from "./reader.ts";
import type { RingFile } from "./ring-file.ts";
import { Starter } from "./starter.ts";
import { endFromGuest, endUnseen, type ExecutionEnd, type StoredExecution } from "./stored.ts";

const SIGKILL = 9;
/** What ended an execution whose sandbox was ended, or put back to a state without it. */
export const STOPPED = "sandbox stopped";
export const REVERTED = "the sandbox was put back to an earlier state";
const END_CODES: Readonly<Record<string, ErrorCode>> = { [STOPPED]: "SANDBOX_GONE", [REVERTED]: "REVERTED" };

export interface ExecutionHost {
  readonly sandboxId: string;
  readonly log: Logger;
  readonly nowUnixMs: () => number;
  /** The guest of the sandbox; rejects while there is none. */
  readonly guest: () => Promise<GuestExecutions>;
  /** The execution is over; called once for each that ran here. */
  readonly ended: (execution: HeldExecution) => void;
  /** What is stored of it has changed. */
  readonly changed: () => void;
}

export class HeldExecution implements ReadableExecution {
  readonly stdout: Output;
  readonly stderr: Output;
  readonly #host: ExecutionHost;
  readonly #feed: Feed;
  readonly #starter: Starter;
  readonly #readers = new Set<OutputReader>();
  readonly #waiting = new Map<OutputReader, () => void>();
  readonly #exitWaiters = new Set<() => void>();
  #stored: StoredExecution;
  #version = 0;
  /** Everything that the process wrote before its end is here, or will never be. */
  #complete = false;
  /** What the process itself wrote, once it has ended and the guest has said it. */
  #wrote: OutputOffsets | null = null;
  #dismissal: AgentError | null = null;
  /** Monotonic time of its end or of the last reader's leaving. */
  #lastUsedMs = performance.now();

  constructor(
    stored: StoredExecution,
    files: { readonly stdout: RingFile; readonly stderr: RingFile },
    host: ExecutionHost,
  ) {
    const hooks = {
      arrived: () => this.#arrived(),
      kept: () => this.#feed.kept(),
      lagging: () => this.#readers.size > this.#waiting.size,
      failing: (error: unknown) =>
        host.log.error(
          { sandbox: host.sandboxId, execution: stored.id, error: String(error) },
          "output cannot be stored",
        ),
    };
    this.#stored = stored;
    this.#host = host;
    this.stdout = new Output(files.stdout, hooks);
    this.stderr = new Output(files.stderr, hooks);
    this.#feed = new Feed(stored.id, this.stdout, this.stderr, {
      guest: host.guest,
      exited: (state, wrote) => {
        this.#exited(state);
        this.#wrote = wrote;
        this.#checkComplete();
      },
      finished: (state) => this.#finished(state),
      lost: () => this.end("the guest agent does not know the execution any more"),
    });
    this.#starter = new Starter({
      pace: (offsets) => {
        this.stdout.setPace(offsets?.stdout ?? null);
        this.stderr.setPace(offsets?.stderr ?? null);
      },
      unblock: () => this.#tellGuest("unblocking", (guest) => guest.setBlock(this.id, false)),
      kill: () => {
        if (this.running) this.#tellGuest("killing", (guest) => guest.signal(this.id, SIGKILL));
      },
    });
    this.#complete = stored.end !== null;
  }

  get id(): string {
    return this.#stored.id;
  }

  get stored(): StoredExecution {
    return this.#stored;
  }

  get tty(): boolean {
    return this.#stored.tty;
  }

  get running(): boolean {
    return this.#stored.end === null;
  }

  /** True when it is over, all of it is stored, and nobody reads it. */
  get idle(): boolean {
    return !this.running && this.#complete && this.#readers.size === 0 && this.stdout.idle && this.stderr.idle;
  }

  /** True when it is `idle` and has been for so long that whoever was reading it does not come back. */
  get abandoned(): boolean {
    return this.idle && performance.now() - this.#lastUsedMs >= limits.executionReattachGraceMs;
  }

  /** What its output takes on the disk. */
  get diskBytes(): number {
    return this.stdout.diskBytes + this.stderr.diskBytes;
  }

  get version(): number {
    return this.#version;
  }

  get dismissal(): AgentError | null {
    return this.#dismissal;
  }

  get last(): ExecutionFrame | null {
    const { end } = this.#stored;
    if (end === null || !this.#complete) return null;
    if (end.error !== null) {
      return { type: "error", code: END_CODES[end.error] ?? "GUEST_ERROR", message: end.error };
    }
    const { exitCode, signal, timedOut, outputOpen } = end;
    return { type: "exited", exitCode, signal, timedOut, outputOpen };
  }

  get input(): StdinStatus {
    return this.#stored.stdin;
  }

  /** Whether the guest has output that is not here. */
  misses({ stdout, stderr }: GuestExecution): boolean {
    return stdout.end > this.stdout.window.end || stderr.end > this.stderr.window.end;
  }

  view(): Execution {
    const { id, incarnation, command, argv, tty, startedAtUnixMs, end, stdin } = this.#stored;
    return {
      id,
      sandboxId: this.#host.sandboxId,
      incarnation,
      ...(command !== undefined && { command }),
      ...(argv !== undefined && { argv }),
      tty,
      status: end === null ? "running" : "exited",
      startedAtUnixMs,
      exitedAtUnixMs: end?.atUnixMs ?? null,
      exitCode: end?.exitCode ?? null,
      signal: end?.signal ?? null,
      timedOut: end?.timedOut ?? false,
      oomKilled: end?.oomKilled ?? false,
      outputOpen: end?.outputOpen ?? false,
      error: end?.error ?? null,
      stdoutLength: this.stdout.window.end,
      stderrLength: this.stderr.window.end,
      stdin,
    };
  }

  /** The guest has started the process: begins to take its output. */
  begin(state: GuestExecution, atUnixMs: number): void {
    this.#stored = { ...this.#stored, startedAtUnixMs: atUnixMs };
    this.#starter.begin({ block: state.block, from: FROM_START, kill: this.#stored.onDisconnect === "kill" });
    this.#inputIs(state);
    void this.#feed.run();
  }

  /** Goes on with an execution of an earlier agent process; `state` is null when the guest could not be asked. */
  resume(state: GuestExecution | null): void {
    const { overflow, onDisconnect } = this.#stored;
    this.#complete = false;
    this.#starter.resume({
      block: state?.block ?? overflow === "block",
      from: { stdout: this.stdout.paceAfterRestart, stderr: this.stderr.paceAfterRestart },
      kill: onDisconnect === "kill",
    });
    if (state !== null) {
      this.#inputIs(state);
      if (state.exitedAtUnixMs !== null) this.#exited(state);
    }
    void this.#feed.run();
  }

  inputTaken(stdin: StdinStatus): void {
    this.#stored = { ...this.#stored, stdin };
  }

  /** Resolves at the end of the process or after `timeoutMs`. */
  async wait(timeoutMs: number): Promise<Execution> {
    if (this.running && timeoutMs > 0) {
      const { promise, resolve } = Promise.withResolvers<void>();
      const timer = setTimeout(resolve, timeoutMs);
      this.#exitWaiters.add(resolve);
      await promise;
      this.#exitWaiters.delete(resolve);
      clearTimeout(timer);
    }
    return this.view();
  }

  /** Throws `REVERTED` when the offsets are of another incarnation. */
  attach({ from, incarnation, role, signal, isBorrowing }: AttachRequest): ExecutionReader {
    if (incarnation !== undefined && incarnation !== this.#stored.incarnation) throw new AgentError("REVERTED");
    const reader = new OutputReader(this, from, signal, isBorrowing);
    if (reader.done) return reader;
    this.#readers.add(reader);
    if (role === "starter") this.#starter.take(reader);
    return reader;
  }

  /** It is over because of `error`, unless it was over before; its last output may still come. */
  ending(error: string): void {
    this.#over(endUnseen(error, this.#host.nowUnixMs()));
  }

  /** It is over because of `error`, unless it was over before, and nothing of it will come. */
  end(error: string): void {
    this.#feed.stop();
    this.ending(error);
    this.#starter.release();
    this.#completed();
  }

  /** The guest is about to be put back: nothing more comes of what is undone, and readers have to begin again. */
  cross(): void {
    this.#feed.stop();
    this.dismiss(new AgentError("REVERTED"));
  }

  /** The guest was put back to where this execution does not run: what is here of it stays readable. */
  crossed(): void {
    this.#dismissal = null;
    this.end(REVERTED);
  }

  /** Every reader gets `error` as its last frame. */
  dismiss(error: AgentError): void {
    this.#starter.suspend();
    this.#dismissal = error;
    this.#wake();
  }

  /** Resolves when what is here of it is stored. */
  async settled(): Promise<void> {
    await Promise.all([this.stdout.settled(), this.stderr.settled()]);
  }

  /** Lets go of the execution, which goes on. Resolves when nothing of it is being written. */
  async close(error: AgentError): Promise<void> {
    this.dismiss(error);
    this.#feed.stop();
    // The guest has what waits for a reader, as long as there is a guest.
    if (!this.running) this.#starter.release();
    await Promise.all([this.stdout.close(), this.stderr.close()]);
  }

  /** Removes its output. Only for one that is `idle` is the room given back in this call. */
  async remove(): Promise<void> {
    this.#starter.suspend();
    this.#feed.stop();
    await Promise.all([this.stdout.remove(), this.stderr.remove()]);
  }

  changed(reader: OutputReader): Promise<void> {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.#waiting.set(reader, resolve);
    if (this.#waiting.size === this.#readers.size) {
      this.stdout.allRead();
      this.stderr.allRead();
    }
    return promise;
  }

  advanced(reader: OutputReader): void {
    this.#starter.advanced(reader);
  }

  left(reader: OutputReader): void {
    this.#readers.delete(reader);
    this.#lastUsedMs = performance.now();
    this.#waiting.get(reader)?.();
    this.#waiting.delete(reader);
    this.#starter.left(reader);
    if (this.#readers.size === 0 && this.#complete) void this.#rest();
  }

  #inputIs({ stdin }: GuestExecution): void {
    this.inputTaken({ bytesWritten: stdin.accepted, closed: stdin.closed });
  }

  #arrived(): void {
    this.#checkComplete();
    this.#wake();
  }

  #wake(): void {
    this.#version += 1;
    const wakes = [...this.#waiting.values()];
    this.#waiting.clear();
    for (const wake of wakes) wake();
  }

  #exited(state: GuestExecution): void {
    this.inputTaken({ bytesWritten: state.stdin.accepted, closed: true });
    this.#over(endFromGuest(state, this.#stored.startedAtUnixMs, this.#host.nowUnixMs()));
  }

  #finished(state: GuestExecution): void {
    this.#exited(state);
    const { end } = this.#stored;
    if (end?.outputOpen === true) this.#store({ ...end, outputOpen: false });
    this.#completed();
  }

  /** The first end is the one that counts. */
  #over(end: ExecutionEnd): void {
    if (this.#stored.end !== null) return;
    this.#lastUsedMs = performance.now();
    this.#store(end);
    for (const over of this.#exitWaiters) over();
    this.#wake();
    this.#host.ended(this);
  }

  #store(end: ExecutionEnd): void {
    this.#stored = { ...this.#stored, end };
    this.#host.changed();
  }

  /** Something may hold the output open; what the process itself wrote is known, and may all be here. */
  #checkComplete(): void {
    const wrote = this.#wrote;
    if (this.#complete || wrote === null) return;
    if (this.stdout.window.end >= wrote.stdout && this.stderr.window.end >= wrote.stderr) this.#completed();
  }

  #completed(): void {
    if (this.#complete) return;
    this.#complete = true;
    this.#wake();
    if (this.#readers.size === 0) void this.#rest();
  }

  /** Gives descriptors back when nobody needs them. */
  async #rest(): Promise<void> {
    await this.settled();
    if (this.#readers.size > 0) return;
    await Promise.all([this.stdout.rest(), this.stderr.rest()]);
  }

  /** Tells the guest something that must arrive, as long as the process runs. */
  #tellGuest(what: string, tell: (guest: GuestExecutions) => Promise<void>): void {
    const attempt = async (): Promise<void> => {
      try {
        await tell(await this.#host.guest());
      } catch (cause) {
        const { code, message } = asAgentError(cause);
        if (!this.running || this.#dismissal !== null) return;
        if (code === "GUEST_UNREACHABLE") setTimeout(() => void attempt(), limits.executionAttachPauseMaxMs).unref();
        else
          this.#host.log.warn({ sandbox: this.#host.sandboxId, execution: this.id, error: message }, `${what} failed`);
      }
    };
    void attempt();
  }
}

/** Where a reader begins that takes everything that is kept. */
export const FROM_START: OutputOffsets = { stdout: 0, stderr: 0 };
