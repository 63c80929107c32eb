// The one status convention of our native libraries: zero or a small non-negative value, or a negative errno, which
// becomes a `HostError` that names the error, the operation and what it was about.
import { constants } from "node:os";
import { AgentError, isHostFull } from "../src/errors/agent-error.ts";

/** Second names of the same numbers. */
const ALIASES: ReadonlySet<string> = new Set(["EWOULDBLOCK", "ENOTSUP"]);

const NAMES: ReadonlyMap<number, string> = new Map(
  Object.entries(constants.errno)
    .filter(([name]) => !ALIASES.has(name))
    .map(([name, number]) => [number, name]),
);

/** A system call that failed. `code` is the errno's name, so callers branch on it and never on the text. */
export class HostError extends Error {
  override readonly name = "HostError";
  readonly code: string;

  constructor(
    readonly errno: number,
    readonly operation: string,
    readonly object: string | null = null,
  ) {
    const code = NAMES.get(errno) ?? `E${errno}`;
    super(object === null ? `${operation}: ${code}` : `${operation} ${JSON.stringify(object)}: ${code}`);
    this.code = code;
  }
}

/** Returns a status that is not negative; throws a `HostError` for one that is. */
export function check(status: number, operation: string, object: string | null = null): number {
  if (status < 0) throw new HostError(-status, operation, object);
  return status;
}

/** Whether `error` is a `HostError` with one of these codes. */
export function isHostError(error: unknown, ...codes: readonly string[]): error is HostError {
  return error instanceof HostError && (codes.length === 0 || codes.includes(error.code));
}

/**
 * What a plugin throws for a failed system call: `HOST_FULL` when there is no room, else `INTERNAL`, with the cause
 * chained. An `AgentError` passes unchanged.
 */
export function asHostFailure(error: unknown, what: string): AgentError {
  if (error instanceof AgentError) return error;
  if (isHostFull(error)) return new AgentError("HOST_FULL", undefined, { cause: error });
  return new AgentError("INTERNAL", what, { cause: error });
}
