// Wire shapes of executions.
import { Type } from "@sinclair/typebox";
import { limits } from "../../config/limits.ts";
import { nullable } from "../schema.ts";

const TERMINAL_SIDE_MAX = 65_535;
/** An offset in a stream; the largest that every JSON reader keeps exact. */
const offset = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

const cells = Type.Integer({ minimum: 1, maximum: TERMINAL_SIDE_MAX });

/** The size of a terminal in character cells. */
export const terminalSize = Type.Object({ cols: cells, rows: cells }, { $id: "TerminalSize" });

export const startBody = Type.Object(
  {
    id: Type.Optional(
      Type.String({
        pattern: "^[A-Za-z0-9_-]{1,64}$",
        description: "Chosen by the caller; the same id with the same command is the same execution.",
      }),
    ),
    command: Type.Optional(Type.String({ minLength: 1, description: "Run by /bin/sh -c." })),
    argv: Type.Optional(Type.Array(Type.String(), { minItems: 1, description: "Run as it is, without a shell." })),
    env: Type.Optional(Type.Record(Type.String(), Type.String())),
    cwd: Type.Optional(Type.String({ minLength: 1 })),
    user: Type.Optional(Type.String({ description: "Only the sandbox's own user." })),
    tty: Type.Optional(terminalSize),
    stdin: Type.Optional(Type.Boolean({ description: "False, the default: stdin is at its end from the beginning." })),
    overflow: Type.Optional(
      Type.Union([Type.Literal("ring"), Type.Literal("block")], {
        description:
          "When the output is not read: `ring` drops the oldest bytes, `block` makes the process wait for the reader " +
          "that started it. Default: `block` when started with a stream, else `ring`.",
      }),
    ),
    on_disconnect: Type.Optional(
      Type.Union([Type.Literal("keep"), Type.Literal("kill")], {
        description: "What happens to the execution when the reader that started it goes away; `keep` by default.",
      }),
    ),
    timeout_seconds: Type.Optional(
      Type.Integer({ minimum: 0, description: "Seconds; 0 or absent: no limit but that of the sandbox's plan." }),
    ),
    policy: Type.Optional(Type.Unknown({ description: "Refused: process sandboxes are confined as a whole." })),
  },
  { $id: "ExecutionStart" },
);

export const stdinStatus = Type.Object(
  {
    bytes_written: Type.Integer({ minimum: 0, description: "Bytes taken so far." }),
    closed: Type.Boolean(),
  },
  { $id: "StdinStatus", additionalProperties: false },
);

export const executionSchema = Type.Object(
  {
    id: Type.String(),
    sandbox_id: Type.String(),
    incarnation: Type.Integer({
      minimum: 0,
      description: "Raised when the sandbox is put back to an earlier state. Offsets mean something within one.",
    }),
    command: Type.Optional(Type.String()),
    argv: Type.Optional(Type.Array(Type.String())),
    tty: Type.Boolean(),
    status: Type.Union([Type.Literal("running"), Type.Literal("exited")]),
    started_at: Type.String({ description: "RFC 3339, UTC" }),
    exited_at: nullable(Type.String({ description: "RFC 3339, UTC" })),
    exit_code: nullable(Type.Integer()),
    signal: nullable(Type.Integer()),
    timed_out: Type.Boolean(),
    oom_killed: Type.Boolean(),
    output_open: Type.Boolean({ description: "It has exited, but something that it started still holds its output." }),
    error: nullable(Type.String({ description: "Why its end was not observed." })),
    stdout_len: offset,
    stderr_len: offset,
    stdin: stdinStatus,
  },
  { $id: "Execution", additionalProperties: false },
);

export const waitBody = Type.Object(
  {
    timeout_ms: Type.Integer({
      minimum: 0,
      maximum: limits.executionWaitMaxMs,
      description: "How long to wait for the exit; 0 asks only.",
    }),
  },
  { $id: "ExecutionWait" },
);

export const signalBody = Type.Object(
  { signal: Type.Union([Type.String(), Type.Integer()], { description: "A name such as TERM, or 1 to 64." }) },
  { $id: "ExecutionSignal" },
);

export const streamQuery = Type.Object({
  stdout_offset: Type.Optional(offset),
  stderr_offset: Type.Optional(offset),
  incarnation: Type.Optional(
    Type.Integer({
      minimum: 0,
      description: "The incarnation that the offsets are of; `REVERTED` when the execution is of another by now.",
    }),
  ),
  role: Type.Optional(
    Type.Union([Type.Literal("starter"), Type.Literal("reader")], {
      description:
        "`starter` takes over from the reader that started it: its pace and its loss count. Default: `reader`.",
    }),
  ),
});

export const stdinQuery = Type.Object({
  offset: Type.Optional(offset),
  eof: Type.Optional(Type.Union([Type.Literal("true"), Type.Literal("false")])),
});
