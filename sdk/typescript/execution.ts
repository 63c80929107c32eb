// A command in a sandbox: its output as frames, its input by offset. A connection that breaks, or an agent that restarts,
// is passed over: the stream goes on where it was, the input is sent again from where it was taken.
import { following } from "./following.ts";
import { endOf, type ExitedFrame, type Frame, MSGPACK_STREAM, type OutputFrame } from "./frames.ts";
import { type CallOptions, type RetryOptions, retried } from "./retry.ts";
import { segment, type Transport } from "./transport.ts";
import type { Execution as ExecutionState, ExecutionStart, StdinStatus } from "./types.ts";

/**
 * Exactly one of `command` and `argv`. The id is chosen here when it is absent; with one of their own, callers can send a
 * start again.
 */
export type StartRequest = Omit<ExecutionStart, "policy">;

export interface AttachOptions extends RetryOptions {
  /** Where the output begins; what is not kept any more is jumped over. 0 by default. */
  readonly stdoutOffset?: number;
  readonly stderrOffset?: number;
  /** `starter` takes the place of the reader that started it, for whom the command may wait. `reader` by default. */
  readonly role?: "reader" | "starter";
}

export class Execution {
  readonly #path: string;
  readonly #offsets: { stdout: number; stderr: number };
  /** Null: not known yet. */
  #stdinOffset: number | null;
  #response: Response | null;

  private constructor(
    private readonly transport: Transport,
    sandboxId: string,
    readonly id: string,
    private readonly options: AttachOptions,
    response: Response | null,
  ) {
    this.#path = `${collectionPath(sandboxId)}/${segment(id)}`;
    this.#offsets = { stdout: options.stdoutOffset ?? 0, stderr: options.stderrOffset ?? 0 };
    this.#stdinOffset = response === null ? null : 0;
    this.#response = response;
  }

  /** Starts a command and attaches to it. Rejects with `ApiError` or `UnreachableError`. */
  static async start(
    transport: Transport,
    sandboxId: string,
    request: StartRequest,
    options: RetryOptions = {},
  ): Promise<Execution> {
    const id = request.id ?? crypto.randomUUID();
    const { signal } = options;
    const response = await transport.request("POST", collectionPath(sandboxId), {
      json: { ...request, id },
      accept: MSGPACK_STREAM,
      signal,
    });
    return new Execution(transport, sandboxId, id, { ...options, role: "starter" }, response);
  }

  /** One that is there, or is not: that is told by what is asked of it. */
  static of(transport: Transport, sandboxId: string, id: string, options: AttachOptions = {}): Execution {
    return new Execution(transport, sandboxId, id, options, null);
  }

  /**
   * The output, then the exit, which is the last frame. To be used once. Throws `ApiError` when the end was not seen,
   * `UnreachableError` when the agent stayed away.
   */
  async *frames(): AsyncGenerator<OutputFrame | ExitedFrame, void, void> {
    const { role = "reader" } = this.options;
    // Offsets mean something within one incarnation: in another the agent answers `REVERTED`.
    let incarnation: number | undefined;
    const query = () => ({
      stdout_offset: this.#offsets.stdout,
      stderr_offset: this.#offsets.stderr,
      incarnation,
      role,
    });
    const first = this.#response;
    this.#response = null;
    for await (const frame of following<Frame>(this.transport, `${this.#path}/stream`, query, this.options, first)) {
      if (frame.type === "started") incarnation = frame.execution.incarnation;
      if (frame.type === "output") {
        const channel = frame.channel === "stderr" ? "stderr" : "stdout";
        this.#offsets[channel] = endOf(frame, this.#offsets[channel]);
        yield frame;
      }
      if (frame.type === "exited") {
        yield frame;
        return;
      }
    }
  }

  /**
   * Sends bytes to stdin behind those that were taken; resolves when these were, which is when the command has room for
   * them. `eof` closes. One call at a time. Rejects with `ApiError`: `EXECUTION_EXITED`, `STDIN_CLOSED`.
   */
  async writeStdin(
    bytes: Uint8Array,
    eof = false,
    signal: AbortSignal | undefined = this.options.signal,
  ): Promise<void> {
    const offset = this.#stdinOffset ?? (await this.stdin()).bytes_written;
    const query = { offset, eof };
    await retried(this.options, () => this.transport.json("PUT", `${this.#path}/stdin`, { bytes, query, signal }));
    this.#stdinOffset = offset + bytes.length;
  }

  /** How many bytes of stdin were taken. */
  stdin(): Promise<StdinStatus> {
    return this.#get("/stdin");
  }

  /** Sends a signal by number or name, such as `TERM`, to the process group. Rejects with `EXECUTION_EXITED`. */
  signal(signal: number | string, options: CallOptions = this.options): Promise<ExecutionState> {
    return this.transport.json("POST", `${this.#path}/signal`, { json: { signal }, signal: options.signal });
  }

  /** Changes the size of its terminal. Rejects with `EXECUTION_EXITED`, `TTY_REQUIRED`. */
  resize(cols: number, rows: number): Promise<ExecutionState> {
    const { signal } = this.options;
    const json = { cols, rows };
    return retried(this.options, () => this.transport.json("POST", `${this.#path}/resize`, { json, signal }));
  }

  /** The execution as the agent knows it now. */
  state(): Promise<ExecutionState> {
    return this.#get("");
  }

  /** The execution at its exit, or as it is after `timeoutMs`. */
  wait(timeoutMs: number, options: CallOptions = this.options): Promise<ExecutionState> {
    const json = { timeout_ms: timeoutMs };
    return this.transport.json("POST", `${this.#path}/wait`, { json, signal: options.signal });
  }

  #get<T>(path: string): Promise<T> {
    const { signal } = this.options;
    return retried(this.options, () => this.transport.json<T>("GET", this.#path + path, { signal }));
  }
}

function collectionPath(sandboxId: string): string {
  return `/v1/sandboxes/${segment(sandboxId)}/executions`;
}

/** The executions of one sandbox. */
export class Executions {
  constructor(
    private readonly transport: Transport,
    private readonly sandboxId: string,
  ) {}

  /** Starts a command that outlives connections, and attaches to it. */
  start(request: StartRequest, options?: RetryOptions): Promise<Execution> {
    return Execution.start(this.transport, this.sandboxId, request, options);
  }

  /** Starts a command and looks away; the same id with the same command answers what it has become. */
  startInBackground(request: StartRequest, { signal }: CallOptions = {}): Promise<ExecutionState> {
    return this.transport.json("POST", collectionPath(this.sandboxId), { json: request, signal });
  }

  /** One that is there; nothing is asked before a method is called. */
  get(id: string, options?: AttachOptions): Execution {
    return Execution.of(this.transport, this.sandboxId, id, options);
  }

  /** By start, then id. */
  async list({ signal }: CallOptions = {}): Promise<readonly ExecutionState[]> {
    const path = collectionPath(this.sandboxId);
    return (await this.transport.json<{ items: readonly ExecutionState[] }>("GET", path, { signal })).items;
  }
}
