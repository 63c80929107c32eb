// Executions for tests of the HTTP surface: nothing runs; the test says what a command writes and when it ends. It
// follows the rules that clients can see: ids, offsets, one end, what the loss of a reader means.
import { AgentError } from "../../errors/agent-error.ts";
import type {
  AttachRequest,
  Execution,
  ExecutionExit,
  ExecutionFrame,
  ExecutionOperations,
  ExecutionReader,
  StartExecutionRequest,
  StdinStatus,
} from "../../sandbox/executions/operations.ts";
import type { Caller, Operations } from "../../sandbox/operations.ts";

type Channel = "stdout" | "stderr";
type Input = Parameters<ExecutionOperations["writeStdin"]>[3];

interface FakeReader {
  position: number;
  isOver: boolean;
  readonly incarnation: number;
}

/** One execution, and the strings that the test pulls. */
export class FakeExecution {
  readonly stdin: Uint8Array[] = [];
  /** Every call of `writeStdin`, as it came. */
  readonly asked: Input[] = [];
  readonly signals: number[] = [];
  readonly sizes: { readonly cols: number; readonly rows: number }[] = [];
  readonly attached: AttachRequest[] = [];
  /** Frames that readers were given, over all of them. */
  framesRead = 0;
  /** What `writeStdin` waits for, as a process that does not read would make it. */
  stdinGate: Promise<void> = Promise.resolve();
  #state: Execution;
  #failure: AgentError | null = null;
  readonly #frames: Extract<ExecutionFrame, { type: "output" }>[] = [];
  #changed = Promise.withResolvers<void>();

  constructor(
    id: string,
    sandboxId: string,
    readonly request: StartExecutionRequest,
  ) {
    this.#state = {
      id,
      sandboxId,
      incarnation: 0,
      ...(request.argv === undefined ? { command: request.command! } : { argv: request.argv }),
      tty: request.tty !== undefined,
      status: "running",
      startedAtUnixMs: Date.now(),
      exitedAtUnixMs: null,
      exitCode: null,
      signal: null,
      timedOut: false,
      oomKilled: false,
      outputOpen: false,
      error: null,
      stdoutLength: 0,
      stderrLength: 0,
      stdin: { bytesWritten: 0, closed: request.stdin !== true && request.tty === undefined },
    };
  }

  get state(): Execution {
    return this.#state;
  }

  write(channel: Channel, data: Uint8Array | string): void {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    const length = channel === "stdout" ? "stdoutLength" : "stderrLength";
    const shown = this.#state.tty ? "pty" : channel;
    this.#frames.push({ type: "output", channel: shown, offset: this.#state[length], data: bytes });
    this.#change({ [length]: this.#state[length] + bytes.length });
  }

  exit(exit: Partial<ExecutionExit> = {}): void {
    const ended = {
      exitCode: exit.signal == null ? 0 : null,
      signal: null,
      timedOut: false,
      outputOpen: false,
      ...exit,
    };
    this.#change({ status: "exited", exitedAtUnixMs: Date.now(), ...ended });
  }

  /** Ends what readers see in another way than by an exit. */
  fail(failure: AgentError): void {
    this.#failure = failure;
    this.#change({});
  }

  takeInput({ offset, data, eof }: Input): StdinStatus {
    const { bytesWritten, closed } = this.#state.stdin;
    if (this.#state.status === "exited") throw new AgentError("EXECUTION_EXITED");
    if (offset > bytesWritten) throw new AgentError("STDIN_GAP", undefined, { details: { accepted: bytesWritten } });
    const fresh = data.subarray(Math.min(data.length, bytesWritten - offset));
    if (closed && fresh.length > 0) throw new AgentError("STDIN_CLOSED");
    if (fresh.length > 0) this.stdin.push(fresh.slice());
    this.#change({ stdin: { bytesWritten: bytesWritten + fresh.length, closed: closed || eof } });
    return this.#state.stdin;
  }

  /** The sandbox is put back to an earlier state, and its readers are cut off without being told. */
  revert(): void {
    this.#change({ incarnation: this.#state.incarnation + 1 });
  }

  /** Resolves at the next change. */
  changed(): Promise<void> {
    return this.#changed.promise;
  }

  async next(reader: FakeReader, request: AttachRequest): Promise<ExecutionFrame | null> {
    for (;;) {
      if (request.signal.aborted || reader.isOver) return null;
      const frame = this.#frames[reader.position];
      if (frame !== undefined) {
        reader.position += 1;
        const from = frame.channel === "stderr" ? request.from.stderr : request.from.stdout;
        if (frame.offset + frame.data.length <= from) continue;
        this.framesRead += 1;
        const skipped = Math.max(0, from - frame.offset);
        return { ...frame, offset: frame.offset + skipped, data: frame.data.subarray(skipped) };
      }
      const { status, exitCode, signal, timedOut, outputOpen, incarnation } = this.#state;
      if (reader.incarnation !== incarnation) {
        reader.isOver = true;
        // As an agent that goes at the same moment: its reader has to ask another.
        return { type: "error", code: "SHUTTING_DOWN", message: "the agent is shutting down" };
      }
      reader.isOver = status === "exited" || this.#failure !== null;
      if (this.#failure !== null) return { type: "error", code: this.#failure.code, message: this.#failure.message };
      if (status === "exited") return { type: "exited", exitCode, signal, timedOut, outputOpen };
      await Promise.race([this.changed(), aborted(request.signal)]);
    }
  }

  #change(fields: Partial<Execution>): void {
    this.#state = { ...this.#state, ...fields };
    this.#changed.resolve();
    this.#changed = Promise.withResolvers<void>();
  }
}

export class FakeExecutions implements ExecutionOperations {
  readonly all = new Map<string, FakeExecution>();
  /** Awaited by `startExecution`. */
  gate: Promise<void> = Promise.resolve();
  /** How often that was called. */
  starts = 0;

  constructor(private readonly sandboxes: Pick<Operations, "get">) {}

  /** One that runs already. */
  add(sandboxId: string, id: string, request: StartExecutionRequest = { command: "true", stdin: true }): FakeExecution {
    const execution = new FakeExecution(id, sandboxId, request);
    this.all.set(`${sandboxId}/${id}`, execution);
    return execution;
  }

  async startExecution(caller: Caller, id: string, request: StartExecutionRequest) {
    this.sandboxes.get(caller, id);
    this.starts += 1;
    await this.gate;
    const known = request.id === undefined ? undefined : this.all.get(`${id}/${request.id}`);
    if (known === undefined) {
      const started = this.add(id, request.id ?? crypto.randomUUID(), request);
      return { execution: started.state, existing: false };
    }
    if (!Bun.deepEquals([known.request.command, known.request.argv], [request.command, request.argv])) {
      throw new AgentError("EXECUTION_EXISTS");
    }
    return { execution: known.state, existing: true };
  }

  async executions(caller: Caller, id: string): Promise<readonly Execution[]> {
    this.sandboxes.get(caller, id);
    return [...this.all.values()].map(({ state }) => state).filter(({ sandboxId }) => sandboxId === id);
  }

  execution = async (caller: Caller, id: string, executionId: string) => this.find(caller, id, executionId).state;

  async waitExecution(caller: Caller, id: string, executionId: string, timeoutMs: number): Promise<Execution> {
    const execution = this.find(caller, id, executionId);
    const deadline = AbortSignal.timeout(timeoutMs);
    while (execution.state.status === "running" && timeoutMs > 0 && !deadline.aborted) {
      await Promise.race([execution.changed(), aborted(deadline)]);
    }
    return execution.state;
  }

  async attachExecution(
    caller: Caller,
    id: string,
    executionId: string,
    request: AttachRequest,
  ): Promise<ExecutionReader> {
    const execution = this.find(caller, id, executionId);
    const { incarnation } = execution.state;
    if (request.incarnation !== undefined && request.incarnation !== incarnation) throw new AgentError("REVERTED");
    execution.attached.push(request);
    const reader = { position: 0, isOver: false, incarnation };
    return { next: () => execution.next(reader, request) };
  }

  async writeStdin(caller: Caller, id: string, executionId: string, input: Input): Promise<StdinStatus> {
    const execution = this.find(caller, id, executionId);
    execution.asked.push(input);
    await execution.stdinGate;
    return execution.takeInput(input);
  }

  async signalExecution(caller: Caller, id: string, executionId: string, signal: number): Promise<Execution> {
    const execution = this.find(caller, id, executionId);
    if (execution.state.status === "exited") throw new AgentError("EXECUTION_EXITED");
    execution.signals.push(signal);
    return execution.state;
  }

  async resizeExecution(caller: Caller, id: string, executionId: string, size: { cols: number; rows: number }) {
    const execution = this.find(caller, id, executionId);
    if (!execution.state.tty) throw new AgentError("TTY_REQUIRED");
    execution.sizes.push({ cols: size.cols, rows: size.rows });
    return execution.state;
  }

  find(caller: Caller, id: string, executionId: string): FakeExecution {
    this.sandboxes.get(caller, id);
    const execution = this.all.get(`${id}/${executionId}`);
    if (execution === undefined) throw new AgentError("EXECUTION_NOT_FOUND");
    return execution;
  }
}

function aborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal.aborted) resolve();
    else signal.addEventListener("abort", () => resolve(), { once: true });
  });
}
