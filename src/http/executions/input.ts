// What goes into a running execution: bytes for its stdin in pieces that the guest takes, and signals by name or number.
import { constants } from "node:os";
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { ExecutionOperations, StdinStatus } from "../../sandbox/executions/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";

const SIGNAL_MAX = 64;
const NAMED: ReadonlyMap<string, number> = new Map(Object.entries(constants.signals));

/** Which execution, and who asks. */
export interface Target {
  readonly caller: Caller;
  readonly sandboxId: string;
  readonly executionId: string;
}

/** The number of a signal given as `TERM`, `SIGTERM` or 15; throws `BAD_REQUEST`. */
export function signalNumber(signal: string | number): number {
  const number = typeof signal === "number" ? signal : NAMED.get(signal.startsWith("SIG") ? signal : `SIG${signal}`);
  if (number !== undefined && Number.isInteger(number) && number >= 1 && number <= SIGNAL_MAX) return number;
  throw new AgentError("BAD_REQUEST", "field signal: expected a signal's name or 1 to 64", {
    details: { field: "signal" },
  });
}

/**
 * Hands bytes to an execution, in order; resolves when the guest has taken them all. An empty `data` with `eof` only
 * closes. Rejects as `writeStdin` does; what was taken before stays taken.
 */
export async function writeStdin(
  operations: ExecutionOperations,
  { caller, sandboxId, executionId }: Target,
  { offset, data, eof }: { readonly offset: number; readonly data: Uint8Array; readonly eof: boolean },
): Promise<StdinStatus> {
  const pieceMax = limits.stdinPieceMaxBytes;
  let start = 0;
  for (;;) {
    const piece = data.subarray(start, start + pieceMax);
    const isLast = start + pieceMax >= data.length;
    const input = { offset: offset + start, data: piece, eof: eof && isLast };
    const status = await operations.writeStdin(caller, sandboxId, executionId, input);
    if (isLast) return status;
    start += pieceMax;
  }
}
