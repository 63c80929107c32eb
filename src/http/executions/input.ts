// What a request about a running execution names: the execution, and signals by name or number.
import { constants } from "node:os";
import { AgentError } from "../../errors/agent-error.ts";
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
