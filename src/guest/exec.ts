// `exec`: runs a command in the guest and gathers the head of its output.
import { limits } from "../config/limits.ts";
import type { ExecRequest, ExecResult } from "../contracts/channel.ts";
import type { ErrorCode } from "../errors/catalogue.ts";
import { ByteCollector } from "./collector.ts";
import type { GuestConnection } from "./connection.ts";
import { flag, integer, optionalInteger } from "./fields.ts";
import { Channel, wide, type Message } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import type { StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

const EXIT_CODE_MAX = 0xff;
const SIGNAL_MAX = 127;
/** A program that cannot be run is told as a shell tells it, whether or not a shell was asked. */
const SHELL_EXIT_CODES: ReadonlyMap<ErrorCode, number> = new Map([
  ["PROGRAM_NOT_FOUND", 127],
  ["PROGRAM_DENIED", 126],
]);

export function exec(connection: GuestConnection, request: ExecRequest): Promise<ExecResult> {
  return new Promise((resolve, reject) => {
    const stdout = new ByteCollector(request.outputMaxBytes);
    const stderr = new ByteCollector(request.outputMaxBytes);
    const handler: StreamHandler = {
      data: (channel, content) => {
        if (channel === Channel.input) throw new ProtocolViolation("input cannot come from the guest");
        (channel === Channel.output ? stdout : stderr).append(content);
        stream.grant(content.length);
      },
      ended: (message) => resolve(result(message, stdout, stderr)),
      failed: (error) => {
        const exitCode = SHELL_EXIT_CODES.get(error.code);
        if (exitCode === undefined) reject(error);
        else resolve(notExecuted(exitCode, error.message));
      },
    };
    const timeoutMs = request.timeoutMs > 0 ? request.timeoutMs + limits.guestExecGraceMs : 0;
    const stream = connection.open("exec", execArguments(request), handler, timeoutMs);
  });
}

function execArguments(request: ExecRequest): Message {
  return {
    ...(request.command !== undefined && { command: request.command }),
    ...(request.argv !== undefined && { argv: request.argv }),
    ...(request.cwd !== undefined && { cwd: request.cwd }),
    env: request.env ?? {},
    timeout_ms: wide(request.timeoutMs),
    output_max: request.outputMaxBytes,
    stdin: false,
    kill_group: true,
  };
}

function result(message: Fields, stdout: ByteCollector, stderr: ByteCollector): ExecResult {
  const exitCode = optionalInteger(message, "exit_code", EXIT_CODE_MAX);
  const signal = optionalInteger(message, "signal", SIGNAL_MAX);
  const timedOut = flag(message, "timed_out");
  const ends = (exitCode === null ? 0 : 1) + (signal === null ? 0 : 1);
  if (ends !== 1 && !(ends === 0 && timedOut)) {
    throw new ProtocolViolation("a command ends with an exit code or a signal");
  }
  return {
    exitCode,
    signal,
    timedOut,
    oomKilled: flag(message, "oom_killed"),
    stdoutLength: lengthOf(message, "stdout_len", stdout),
    stderrLength: lengthOf(message, "stderr_len", stderr),
    stdout: stdout.take(),
    stderr: stderr.take(),
  };
}

function notExecuted(exitCode: number, message: string): ExecResult {
  const stderr = new TextEncoder().encode(`${message}\n`);
  return {
    exitCode,
    signal: null,
    timedOut: false,
    oomKilled: false,
    stdoutLength: 0,
    stderrLength: stderr.length,
    stdout: new Uint8Array(0),
    stderr,
  };
}

function lengthOf(message: Fields, name: string, received: ByteCollector): number {
  const length = integer(message, name);
  if (length < received.length) throw new ProtocolViolation(`${name} is less than what was sent`);
  return length;
}
