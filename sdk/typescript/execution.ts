// A command in a sandbox, from the side of who started it: its output as frames, its input by offset. A connection that
// breaks, or an agent that restarts, is passed over: the stream goes on where it was, the input is sent again from where
// it was taken.
import { ApiError } from "./errors.ts";
import {
  bodyOf,
  type ExitedFrame,
  type Frame,
  MSGPACK_STREAM,
  type OutputFrame,
  readFrames,
  SILENCE_MS,
} from "./frames.ts";
import { isPassing, type RetryOptions, retried } from "./retry.ts";
import type { Transport } from "./transport.ts";
import type { Execution as ExecutionState, ExecutionStart } from "./types.ts";

/**
 * Exactly one of `command` and `argv`. The id is chosen here when it is absent; with one of their own, callers can send a
 * start again.
 */
export type StartRequest = Omit<ExecutionStart, "policy">;

export class Execution {
  readonly #path: string;
  readonly #offsets = { stdout: 0, stderr: 0 };
  #stdinOffset = 0;
  #body: ReadableStream<Uint8Array> | null;

  private constructor(
    private readonly transport: Transport,
    sandboxId: string,
    readonly id: string,
    private readonly options: RetryOptions,
    body: ReadableStream<Uint8Array>,
  ) {
    this.#path = `/v1/sandboxes/${encodeURIComponent(sandboxId)}/executions/${encodeURIComponent(id)}`;
    this.#body = body;
  }

  /** Starts a command and attaches to it. Rejects with `ApiError` or `UnreachableError`. */
  static async start(
    transport: Transport,
    sandboxId: string,
    request: StartRequest,
    options: RetryOptions = {},
  ): Promise<Execution> {
    const id = request.id ?? crypto.randomUUID();
    const path = `/v1/sandboxes/${encodeURIComponent(sandboxId)}/executions`;
    const { signal } = options;
    const response = await transport.request("POST", path, {
      json: { ...request, id },
      accept: MSGPACK_STREAM,
      signal,
    });
    return new Execution(transport, sandboxId, id, options, bodyOf(response));
  }

  /**
   * The output, then the exit, which is the last frame. To be used once. Throws `ApiError` when the end was not seen,
   * `UnreachableError` when the agent stayed away.
   */
  async *frames(): AsyncGenerator<OutputFrame | ExitedFrame, void, void> {
    for (;;) {
      const body = this.#body ?? (await this.#attach());
      this.#body = null;
      try {
        for await (const frame of readFrames<Frame>(body, SILENCE_MS)) {
          if (frame.type === "error") throw new ApiError(0, frame.code, frame.message);
          if (frame.type === "output") {
            this.#offsets[frame.channel === "stderr" ? "stderr" : "stdout"] = frame.offset + frame.data.length;
            yield frame;
          }
          if (frame.type === "exited") {
            yield frame;
            return;
          }
        }
      } catch (error) {
        if (this.options.signal?.aborted || (error instanceof ApiError && !isPassing(error))) throw error;
      }
    }
  }

  /**
   * Sends bytes to stdin behind those sent before; resolves when they were taken, which is when the command has room for
   * them. `eof` closes. One call at a time. Rejects with `ApiError`: `EXECUTION_EXITED`, `STDIN_CLOSED`.
   */
  async writeStdin(
    bytes: Uint8Array,
    eof = false,
    signal: AbortSignal | undefined = this.options.signal,
  ): Promise<void> {
    const query = { offset: this.#stdinOffset, eof };
    await retried(this.options, () => this.transport.json("PUT", `${this.#path}/stdin`, { bytes, query, signal }));
    this.#stdinOffset += bytes.length;
  }

  /** Sends a signal by number or name, such as `TERM`, to the process group. */
  async signal(signal: number | string): Promise<void> {
    await this.transport.json("POST", `${this.#path}/signal`, { json: { signal }, signal: this.options.signal });
  }

  async resize(cols: number, rows: number): Promise<void> {
    await this.transport.json("POST", `${this.#path}/resize`, { json: { cols, rows }, signal: this.options.signal });
  }

  /** The execution as the agent knows it now. */
  state(): Promise<ExecutionState> {
    return this.transport.json("GET", this.#path, { signal: this.options.signal });
  }

  async #attach(): Promise<ReadableStream<Uint8Array>> {
    const { stdout, stderr } = this.#offsets;
    const query = { stdout_offset: stdout, stderr_offset: stderr, role: "starter" };
    const { signal } = this.options;
    const response = await retried(this.options, () =>
      this.transport.request("GET", `${this.#path}/stream`, { query, accept: MSGPACK_STREAM, signal }),
    );
    return bodyOf(response);
  }
}
