// Errors that the parts of the network fabric share.
import { AgentError, asAgentError } from "../errors/agent-error.ts";

/** For what only a sandbox with a network has. */
export function withoutNetwork(): AgentError {
  return new AgentError(
    "INVALID_STATE",
    "the sandbox has no network now: it must run, and have been made with one (network.mode, net_ports)",
  );
}

/** Of a sandbox that is not made for it: where an operator sees what this host lacks, and what to do. */
export function asRefusal(error: unknown): AgentError {
  const reason = asDataplaneError(error);
  if (reason.code !== "DATAPLANE_FAILED" && reason.code !== "CAPABILITY_MISSING") return reason;
  const message = `${reason.message}; fluxctl doctor says what this host lacks`;
  return new AgentError(reason.code, message, { details: reason.details, cause: reason });
}

/** What a dataplane rejected with, as callers are told it. */
export function asDataplaneError(error: unknown): AgentError {
  if (error instanceof AgentError) return error;
  const { code, message } = asAgentError(error);
  return code === "HOST_FULL"
    ? new AgentError(code, message, { cause: error })
    : new AgentError("DATAPLANE_FAILED", undefined, { cause: error });
}
