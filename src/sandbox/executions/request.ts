// Checks what a caller asks to start, and says it in the guest's words.
import { limits } from "../../config/limits.ts";
import type { ExecutionStart, TerminalSize } from "../../contracts/executions.ts";
import { AgentError } from "../../errors/agent-error.ts";
import { checkCommand, executionTimeoutMs } from "../guest-access.ts";
import type { SandboxRecord } from "../record.ts";
import type { StartExecutionRequest } from "./operations.ts";
import { EXECUTION_ID } from "./stored.ts";

const TERMINAL_SIDE_MAX = 0xffff;
const SIGNAL_MAX = 64;

/** Rejects with `BAD_REQUEST`, `PATH_INVALID` or `COMMAND_TOO_LARGE`. */
export function startRequest(record: SandboxRecord, request: StartExecutionRequest): ExecutionStart {
  const { id = crypto.randomUUID(), command, argv, env = {}, cwd, user, tty, stdin, overflow } = request;
  if (!EXECUTION_ID.test(id))
    throw new AgentError("BAD_REQUEST", "an execution id is 1 to 64 of A-Z, a-z, 0-9, _ and -");
  checkCommand(request);
  if (user !== undefined && user !== String(record.leases.uid)) {
    throw new AgentError("BAD_REQUEST", "user: only the sandbox's own user can run commands in it");
  }
  if (tty !== undefined) checkTerminalSize(tty);
  return {
    id,
    ...(command !== undefined && { command }),
    ...(argv !== undefined && { argv }),
    ...(cwd !== undefined && { cwd }),
    ...(tty !== undefined && { tty }),
    env,
    stdin: tty !== undefined || stdin === true,
    timeoutMs: executionTimeoutMs(record, request.timeoutSeconds),
    ringMaxBytes: limits.executionRingMaxBytes,
    block: overflow === "block",
  };
}

/** Rejects with `BAD_REQUEST`. */
export function checkTerminalSize({ cols, rows }: TerminalSize): void {
  const fits = (side: number): boolean => Number.isInteger(side) && side >= 1 && side <= TERMINAL_SIDE_MAX;
  if (!fits(cols) || !fits(rows)) throw new AgentError("BAD_REQUEST", "cols and rows are 1 to 65535");
}

/** Rejects with `BAD_REQUEST`. */
export function checkSignal(signal: number): void {
  if (Number.isInteger(signal) && signal >= 1 && signal <= SIGNAL_MAX) return;
  throw new AgentError("BAD_REQUEST", "a signal is 1 to 64");
}
