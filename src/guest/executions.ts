// Executions over protocol version 2. Each call is a stream of its own; an attach is one that lasts, and whose credit is
// granted as the host takes the output.
import { limits } from "../config/limits.ts";
import type {
  ExecutionSink,
  ExecutionStart,
  GuestExecution,
  GuestExecutions,
  OutputOffsets,
  StdinReply,
  TerminalSize,
} from "../contracts/executions.ts";
import { type AgentError, asAgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { executionState, outputOffsets } from "./execution-state.ts";
import { guestUnreachable } from "./faults.ts";
import { flag, integer } from "./fields.ts";
import { Channel, wide, type Message } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import type { StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

type OnConnection = <T>(operation: (connection: GuestConnection) => Promise<T>) => Promise<T>;

export class ConnectedExecutions implements GuestExecutions {
  readonly #on: OnConnection;

  /** `on` runs an operation on a connection that is alive. */
  constructor(on: OnConnection) {
    this.#on = on;
  }

  start(request: ExecutionStart): Promise<{ readonly execution: GuestExecution; readonly existing: boolean }> {
    return this.#call("execution-start", startArguments(request), (reply) => {
      const execution = executionState(reply.execution);
      if (execution.id !== request.id) throw new ProtocolViolation("another execution than was started");
      return { execution, existing: reply.existing === true };
    });
  }

  attach(id: string, from: OutputOffsets, sink: ExecutionSink, signal: AbortSignal): Promise<GuestExecution> {
    return this.#on((connection) => attach(connection, id, from, sink, signal));
  }

  acknowledge(id: string, offsets: OutputOffsets): Promise<void> {
    return this.#call("execution-ack", { id, ...wideOffsets(offsets) }, nothing);
  }

  setBlock(id: string, block: boolean): Promise<void> {
    return this.#call("execution-mode", { id, block }, nothing);
  }

  /** Without a deadline: the guest answers when the process has read enough. */
  writeStdin(
    id: string,
    offset: number,
    data: Uint8Array,
    eof: boolean,
    signal: AbortSignal = NEVER,
  ): Promise<StdinReply> {
    const args = { id, offset: wide(offset), d: data, eof };
    const read = (reply: Fields): StdinReply => ({
      accepted: integer(reply, "accepted"),
      closed: flag(reply, "closed"),
      gap: flag(reply, "gap"),
    });
    return this.#call("execution-stdin", args, read, 0, signal);
  }

  signal(id: string, signal: number): Promise<void> {
    return this.#call("execution-signal", { id, signal }, nothing);
  }

  resize(id: string, { cols, rows }: TerminalSize): Promise<void> {
    return this.#call("execution-resize", { id, cols, rows }, nothing);
  }

  list(): Promise<readonly GuestExecution[]> {
    return this.#call("execution-list", {}, ({ executions }) => {
      if (!Array.isArray(executions)) throw new ProtocolViolation("executions is missing");
      return executions.map(executionState);
    });
  }

  forget(id: string): Promise<void> {
    return this.#call("execution-forget", { id }, nothing);
  }

  /** What `read` refuses is a breach of protocol like any other. `timeoutMs` 0 = no limit. */
  #call<T>(
    op: string,
    args: Message,
    read: (reply: Fields) => T,
    timeoutMs: number = limits.guestCallTimeoutMs,
    signal: AbortSignal = NEVER,
  ): Promise<T> {
    return this.#on(async (connection) => {
      const { promise, resolve, reject } = Promise.withResolvers<T>();
      if (signal.aborted) throw givenUp();
      const handler = { ended: (reply: Fields) => resolve(read(reply)), failed: reject };
      const stream = connection.open(op, args, handler, timeoutMs);
      return await untilAborted(promise, signal, () => connection.abandon(stream, givenUp()));
    });
  }
}

const NEVER = new AbortController().signal;

const nothing = (): void => undefined;

function givenUp(): AgentError {
  return guestUnreachable("the caller has given up");
}

/** Calls `leave` when the signal aborts before the promise settles. */
async function untilAborted<T>(promise: Promise<T>, signal: AbortSignal, leave: () => void): Promise<T> {
  signal.addEventListener("abort", leave, { once: true });
  try {
    return await promise;
  } finally {
    signal.removeEventListener("abort", leave);
  }
}

function wideOffsets({ stdout, stderr }: OutputOffsets): Message {
  return { stdout: wide(stdout), stderr: wide(stderr) };
}

function startArguments(request: ExecutionStart): Message {
  return {
    id: request.id,
    ...(request.command !== undefined && { command: request.command }),
    ...(request.argv !== undefined && { argv: request.argv }),
    ...(request.cwd !== undefined && { cwd: request.cwd }),
    ...(request.tty !== undefined && { tty: { cols: request.tty.cols, rows: request.tty.rows } }),
    env: request.env,
    stdin: request.stdin,
    timeout_ms: wide(request.timeoutMs),
    ring_max: request.ringMaxBytes,
    block: request.block,
  };
}

function attach(
  connection: GuestConnection,
  id: string,
  from: OutputOffsets,
  sink: ExecutionSink,
  signal: AbortSignal,
): Promise<GuestExecution> {
  const { promise, resolve, reject } = Promise.withResolvers<GuestExecution>();
  if (signal.aborted) return Promise.reject(givenUp());
  const ends = { stdout: from.stdout, stderr: from.stderr };
  /** What is granted back with the newest promise: many small pieces may share one, and then cost no more than one. */
  const unstored: Record<"stdout" | "stderr", { readonly stored: Promise<void>; bytes: number } | null> = {
    stdout: null,
    stderr: null,
  };
  const handler: StreamHandler = {
    event: (message) => {
      if (message.event === "exited") sink.exited(exitedState(message.execution, id), outputOffsets(message.wrote));
    },
    data: (number, content, message, loan) => {
      if (number === Channel.input) throw new ProtocolViolation("input cannot come from the guest");
      const channel = number === Channel.output ? "stdout" : "stderr";
      const offset = integer(message, "o");
      if (offset < ends[channel]) throw new ProtocolViolation("an offset that goes backwards");
      ends[channel] = offset + content.length;
      const stored = sink.output(channel, offset, content, loan);
      const waiting = unstored[channel];
      if (waiting?.stored === stored) {
        waiting.bytes += content.length;
        return;
      }
      const fresh = { stored, bytes: content.length };
      unstored[channel] = fresh;
      stored.then(
        () => {
          if (unstored[channel] === fresh) unstored[channel] = null;
          stream.grant(fresh.bytes);
        },
        (error: unknown) => connection.abandon(stream, asAgentError(error)),
      );
    },
    ended: (message) => resolve(exitedState(message.execution, id)),
    failed: reject,
  };
  const stream = connection.open("execution-attach", { id, ...wideOffsets(from) }, handler, 0);
  // What is under way while it is written to the disk must not hold the guest up.
  connection.widen(stream);
  return untilAborted(promise, signal, () => connection.abandon(stream, givenUp()));
}

function exitedState(value: unknown, id: string): GuestExecution {
  const state = executionState(value);
  if (state.id !== id || state.exitedAtUnixMs === null) throw new ProtocolViolation("an end of something else");
  return state;
}
