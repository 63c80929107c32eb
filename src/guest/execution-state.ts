// Reads the state of an execution out of a guest agent's message, every field checked.
import type { GuestExecution, OutputOffsets, OutputWindow } from "../contracts/executions.ts";
import { flag, integer, optionalInteger } from "./fields.ts";
import type { Fields } from "./msgpack.ts";
import { ProtocolViolation } from "./violation.ts";

const ID = /^[A-Za-z0-9_-]{1,64}$/;
const EXIT_CODE_MAX = 0xff;
const SIGNAL_MAX = 127;

/** Throws `ProtocolViolation` for anything that is not a whole and consistent state. */
export function executionState(value: unknown): GuestExecution {
  const fields = map(value, "execution");
  const { id, command, argv } = fields;
  if (typeof id !== "string" || !ID.test(id)) throw new ProtocolViolation("an execution without an id");
  const stdin = map(fields.stdin, "stdin");
  const state: GuestExecution = {
    id,
    ...(typeof command === "string" && { command }),
    ...(Array.isArray(argv) && argv.every((item) => typeof item === "string") && { argv }),
    pid: integer(fields, "pid"),
    tty: flag(fields, "tty"),
    startedAtUnixMs: integer(fields, "started_at_ms"),
    exitedAtUnixMs: optionalInteger(fields, "exited_at_ms", Number.MAX_SAFE_INTEGER),
    exitCode: optionalInteger(fields, "exit_code", EXIT_CODE_MAX),
    signal: optionalInteger(fields, "signal", SIGNAL_MAX),
    timedOut: flag(fields, "timed_out"),
    oomKilled: flag(fields, "oom_killed"),
    outputOpen: flag(fields, "output_open"),
    block: flag(fields, "block"),
    stdout: window(fields.stdout, "stdout"),
    stderr: window(fields.stderr, "stderr"),
    stdin: { accepted: integer(stdin, "accepted"), closed: flag(stdin, "closed") },
  };
  checkEnd(state);
  return state;
}

/** An exit is one code or one signal, or neither where the guest could not tell. */
function checkEnd({ exitedAtUnixMs, exitCode, signal }: GuestExecution): void {
  const ends = (exitCode === null ? 0 : 1) + (signal === null ? 0 : 1);
  if (ends > (exitedAtUnixMs === null ? 0 : 1)) {
    throw new ProtocolViolation("an execution ends with an exit code or a signal");
  }
}

function window(value: unknown, name: string): OutputWindow {
  const fields = map(value, name);
  const base = integer(fields, "base");
  const end = integer(fields, "end");
  if (base > end) throw new ProtocolViolation(`${name} ends before it begins`);
  return { base, end };
}

/** Throws `ProtocolViolation`. */
export function outputOffsets(value: unknown): OutputOffsets {
  const fields = map(value, "offsets");
  return { stdout: integer(fields, "stdout"), stderr: integer(fields, "stderr") };
}

function map(value: unknown, name: string): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value) || value instanceof Uint8Array) {
    throw new ProtocolViolation(`${name} is no map`);
  }
  return value as Fields;
}
