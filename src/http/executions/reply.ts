// Executions and their frames in the wire's words.
import type { Execution, ExecutionFrame, StdinStatus } from "../../sandbox/executions/operations.ts";
import type { Frame } from "../stream/frame.ts";

export function executionReply(execution: Execution) {
  const { command, argv } = execution;
  return {
    id: execution.id,
    sandbox_id: execution.sandboxId,
    incarnation: execution.incarnation,
    ...(command === undefined ? { argv: [...(argv ?? [])] } : { command }),
    tty: execution.tty,
    status: execution.status,
    started_at: new Date(execution.startedAtUnixMs).toISOString(),
    exited_at: execution.exitedAtUnixMs === null ? null : new Date(execution.exitedAtUnixMs).toISOString(),
    exit_code: execution.exitCode,
    signal: execution.signal,
    timed_out: execution.timedOut,
    oom_killed: execution.oomKilled,
    output_open: execution.outputOpen,
    error: execution.error,
    stdout_len: execution.stdoutLength,
    stderr_len: execution.stderrLength,
    stdin: stdinReply(execution.stdin),
  };
}

export function stdinReply(status: StdinStatus) {
  return { bytes_written: status.bytesWritten, closed: status.closed };
}

/** A frame of the core as a frame of the wire. */
export function frameReply(frame: ExecutionFrame): Frame {
  switch (frame.type) {
    case "output":
      return { type: "output", channel: frame.channel, offset: frame.offset, data: frame.data };
    case "exited":
      return {
        type: "exited",
        ...(frame.signal === null ? { exit_code: frame.exitCode } : { signal: frame.signal }),
        timed_out: frame.timedOut,
        output_open: frame.outputOpen,
      };
    case "error":
      return { type: "error", code: frame.code, message: frame.message };
  }
}
