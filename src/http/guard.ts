// The one guard of paths that carry a sandbox's id. An id that is malformed, unknown or another tenant's gives the same
// answer, so that nobody learns which ids exist.
import { AgentError } from "../errors/agent-error.ts";
import { isId } from "../sandbox/fields.ts";
import type { Caller, Operations } from "../sandbox/operations.ts";

/** The id of the path when the caller may see its sandbox; throws `SANDBOX_NOT_FOUND`. */
export function guardSandbox(operations: Operations, caller: Caller, id: string | null | undefined): string {
  if (typeof id !== "string" || !isId(id) || !operations.visible(caller, id)) {
    throw new AgentError("SANDBOX_NOT_FOUND");
  }
  return id;
}

/** Throws `HOST_WIDE_REFUSED` for a caller that is bound to a tenant. */
export function guardHost(caller: Caller): void {
  if (caller.tenant !== null) throw new AgentError("HOST_WIDE_REFUSED");
}
