// What the guest agent's error codes mean to a caller of the agent.
import { AgentError } from "../errors/agent-error.ts";
import { catalogue, type ErrorCode } from "../errors/catalogue.ts";
import { printable, text } from "./fields.ts";
import type { Fields } from "./msgpack.ts";

const codes: ReadonlyMap<string, ErrorCode> = new Map([
  ["NOT_FOUND", "FILE_NOT_FOUND"],
  ["NOT_REGULAR", "FILE_NOT_REGULAR"],
  ["NOT_DIRECTORY", "NOT_A_DIRECTORY"],
  ["SYMLINK", "FILE_IS_SYMLINK"],
  ["DENIED", "FILE_DENIED"],
  ["TOO_LARGE", "FILE_TOO_LARGE"],
  ["NO_SPACE", "WORKSPACE_FULL"],
  ["WALK_FAILED", "WALK_FAILED"],
  ["LIMIT", "LISTING_TOO_LARGE"],
  ["GONE", "SANDBOX_GONE"],
  ["UNKNOWN_OP", "NOT_SUPPORTED"],
  ["TOO_MANY_STREAMS", "SANDBOX_BUSY"],
  ["PROGRAM_NOT_FOUND", "PROGRAM_NOT_FOUND"],
  ["PROGRAM_DENIED", "PROGRAM_DENIED"],
]);

/** Codes that mean something else where a command is the subject. */
const commandCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ["LIMIT", "SANDBOX_BUSY"],
  ["TOO_LARGE", "COMMAND_TOO_LARGE"],
]);

/** Codes of the operations on executions that are there, where the execution is the subject. */
const executionCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ["NOT_FOUND", "EXECUTION_NOT_FOUND"],
  ["ENDED", "EXECUTION_EXITED"],
  ["BUSY", "SANDBOX_BUSY"],
  ["BAD_ARGUMENT", "BAD_REQUEST"],
]);

const startCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ...commandCodes,
  ["EXISTS", "EXECUTION_EXISTS"],
  ["CAPABILITY", "CAPABILITY_MISSING"],
  ["BAD_ARGUMENT", "BAD_REQUEST"],
]);

/** Codes of the operations on files, where the path is the subject. */
const fileCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ["NOT_FOUND", "PATH_NOT_FOUND"],
  ["NOT_EMPTY", "DIRECTORY_NOT_EMPTY"],
  ["EXISTS", "PATH_EXISTS"],
  ["CAPABILITY", "CAPABILITY_MISSING"],
  ["OFFSET_MISMATCH", "RANGE_NOT_SATISFIABLE"],
  ["BAD_ARGUMENT", "PATH_INVALID"],
  // Also what is heard first when the sandbox is ending.
  ["INTERRUPTED", "GUEST_UNREACHABLE"],
]);

/** Codes of the operations on ports, where the port is the subject. */
const portCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ["REFUSED", "PORT_REFUSED"],
  ["BROKEN", "PORT_BROKEN"],
  ["TIMED_OUT", "DEADLINE_EXCEEDED"],
  ["LIMIT", "PORTS_BUSY"],
  ["CAPABILITY", "CAPABILITY_MISSING"],
  ["BAD_ARGUMENT", "BAD_REQUEST"],
  // Also what is heard first when the sandbox is ending.
  ["INTERRUPTED", "GUEST_UNREACHABLE"],
]);

const portWaitCodes: ReadonlyMap<string, ErrorCode> = new Map([...portCodes, ["TIMED_OUT", "PORT_WAIT_TIMEOUT"]]);

/** Operations of which so many run that the next must wait. */
const busyFileCodes: ReadonlyMap<string, ErrorCode> = new Map([
  ...fileCodes,
  ["LIMIT", "SANDBOX_BUSY"],
  ["BUSY", "SANDBOX_BUSY"],
]);
const watchCodes: ReadonlyMap<string, ErrorCode> = new Map([...busyFileCodes, ["TOO_LARGE", "LISTING_TOO_LARGE"]]);
const archiveCodes: ReadonlyMap<string, ErrorCode> = new Map([...fileCodes, ["BAD_ARGUMENT", "ARCHIVE_REFUSED"]]);

const FILE_OPS: ReadonlyMap<string, ReadonlyMap<string, ErrorCode>> = new Map([
  ...[
    ...["stat", "resolve", "list", "create", "set-attributes", "symlink", "link"],
    ...["mkdir", "remove", "move", "archive-read"],
  ].map((op) => [op, fileCodes] as const),
  ...["read-range", "write-stream", "write-at"].map((op) => [op, busyFileCodes] as const),
  ["watch", watchCodes],
  ["archive-write", archiveCodes],
]);

function codesOf(op: string | null): ReadonlyMap<string, ErrorCode> | null {
  if (op === "exec") return commandCodes;
  if (op === "execution-start") return startCodes;
  if (op?.startsWith("execution-") === true) return executionCodes;
  if (op === "port-wait") return portWaitCodes;
  if (op?.startsWith("port-") === true) return portCodes;
  return op === null ? null : (FILE_OPS.get(op) ?? null);
}

/** The error that an ERROR frame stands for, on a stream for `op` or on the connection. What has no code of its own is `GUEST_ERROR`, with the guest's code first. */
export function guestFault(fields: Fields, op: string | null): AgentError {
  const guestCode = text(fields, "code");
  const message = text(fields, "message");
  const code = codesOf(op)?.get(guestCode) ?? codes.get(guestCode);
  if (code !== undefined) return new AgentError(code, `${catalogue[code].message}: ${message}`);
  return new AgentError("GUEST_ERROR", `${catalogue.GUEST_ERROR.message}: ${guestCode}: ${message}`);
}

/** The peer broke the protocol: what it says cannot be relied on. */
export function guestViolation(reason: string): AgentError {
  return new AgentError("GUEST_ERROR", `${catalogue.GUEST_ERROR.message}: ${printable(reason)}`);
}

export function guestUnreachable(reason: string, cause?: unknown): AgentError {
  return new AgentError("GUEST_UNREACHABLE", `${catalogue.GUEST_UNREACHABLE.message}: ${reason}`, { cause });
}
