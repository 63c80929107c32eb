// Executions of a sandbox as a client sees them: calls, streams of frames, and a reader that comes back after every
// loss at the byte that it had come to.
import { Unpackr } from "msgpackr";
import type { TestSandbox } from "./sandbox.ts";

export interface ExecutionBody {
  id: string;
  status: "running" | "exited";
  exit_code: number | null;
  signal: number | null;
  timed_out: boolean;
  output_open: boolean;
  error: string | null;
  stdout_len: number;
  stderr_len: number;
  stdin: { bytes_written: number; closed: boolean };
  code?: string;
  details?: Record<string, unknown>;
}

export interface StreamFrame {
  readonly type: "started" | "output" | "exited" | "keep_alive" | "error";
  readonly channel?: "stdout" | "stderr" | "pty";
  readonly offset?: number;
  readonly data?: Uint8Array;
  readonly exit_code?: number;
  readonly signal?: number;
  readonly timed_out?: boolean;
  readonly output_open?: boolean;
  readonly code?: string;
  readonly message?: string;
}

export const MSGPACK_STREAM = "application/vnd.fluxvm.stream+msgpack";

const unpackr = new Unpackr({ useRecords: false, int64AsType: "number" });

/** The frames of a streamed response; throws where it breaks off in the middle of one. */
export async function* framesOf(response: Response): AsyncGenerator<StreamFrame, void, void> {
  if (response.body === null) throw new Error("no body");
  let rest: Uint8Array = new Uint8Array(0);
  let more: Uint8Array[] = [];
  let missing = 0;
  for await (const chunk of response.body) {
    more.push(chunk);
    missing -= chunk.length;
    if (missing > 0) continue;
    rest = more.length === 1 && rest.length === 0 ? chunk : Buffer.concat([rest, ...more]);
    more = [];
    for (missing = missingOf(rest); missing <= 0; missing = missingOf(rest)) {
      const end = rest.length + missing;
      yield unpackr.unpack(rest.subarray(4, end)) as StreamFrame;
      rest = rest.subarray(end);
    }
  }
  if (rest.length > 0 || more.length > 0) throw new Error("the stream broke off in the middle of a frame");
}

/** How many bytes the first frame needs that are not there; below zero: how many follow it. */
function missingOf(bytes: Uint8Array): number {
  if (bytes.length < 4) return 4 - bytes.length;
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  return 4 + length - bytes.length;
}

export class TestExecution {
  private constructor(
    readonly sandbox: TestSandbox,
    readonly id: string,
  ) {}

  static async start(sandbox: TestSandbox, body: Record<string, unknown>): Promise<TestExecution> {
    const reply = await sandbox.agent.json<ExecutionBody>("POST", `${sandbox.path}/executions`, body);
    if (reply.status !== 201 && reply.status !== 200) {
      throw new Error(`start: ${reply.status} ${JSON.stringify(reply.body)}`);
    }
    return new TestExecution(sandbox, reply.body.id);
  }

  get path(): string {
    return `${this.sandbox.path}/executions/${this.id}`;
  }

  async view(): Promise<ExecutionBody> {
    return (await this.sandbox.agent.json<ExecutionBody>("GET", this.path)).body;
  }

  async wait(timeoutMs = 10_000): Promise<ExecutionBody> {
    const body = { timeout_ms: timeoutMs };
    return (await this.sandbox.agent.json<ExecutionBody>("POST", `${this.path}/wait`, body)).body;
  }

  /** Status and body of a call on the execution. */
  call(method: string, verb: string, body?: unknown) {
    return this.sandbox.agent.json<ExecutionBody>(method, `${this.path}/${verb}`, body);
  }

  async stdin(offset: number, data: string | Uint8Array, eof = false) {
    const path = `${this.path}/stdin?offset=${offset}&eof=${eof}`;
    const response = await this.sandbox.agent.fetch("PUT", path, { body: data });
    const body = (await response.json()) as {
      bytes_written: number;
      closed: boolean;
      code?: string;
      details?: unknown;
    };
    return { status: response.status, body };
  }

  stream(query = "", signal?: AbortSignal): Promise<Response> {
    return this.sandbox.agent.fetch("GET", `${this.path}/stream?${query}`, {
      headers: { accept: MSGPACK_STREAM },
      ...(signal !== undefined && { signal }),
    });
  }

  /** Every frame from the offsets on but those that only say that the stream is alive. */
  async frames(query = ""): Promise<StreamFrame[]> {
    const frames: StreamFrame[] = [];
    for await (const frame of framesOf(await this.stream(query))) {
      if (frame.type !== "keep_alive" && frame.type !== "started") frames.push(frame);
    }
    return frames;
  }

  /** Everything that one output holds, as text. */
  async output(channel: "stdout" | "stderr" | "pty" = "stdout"): Promise<string> {
    return textOf(await this.frames(), channel);
  }
}

export function textOf(frames: readonly StreamFrame[], channel: string): string {
  const pieces = frames.filter((frame) => frame.channel === channel).map(({ data }) => data ?? new Uint8Array());
  return Buffer.concat(pieces).toString();
}
