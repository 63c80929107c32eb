// The only file that turns an error into a response. Every answer that is not a success has the body
// `{"error", "code", "details"}`; what was not thrown on purpose shows nothing of its cause.
import type { Logger } from "../contracts/log.ts";
import { AgentError, asAgentError } from "../errors/agent-error.ts";
import { catalogue } from "../errors/catalogue.ts";

/**
 * The response for anything thrown. Failures of the agent itself (500 and above) are logged with their cause.
 */
export function errorResponse(thrown: unknown, log: Logger, requestId: string): Response {
  const error = asAgentError(thrown);
  if (error.status >= 500 && !catalogue[error.code].retryable) {
    log.error({ request_id: requestId, code: error.code, err: error.cause ?? error }, error.message);
  }
  return new Response(JSON.stringify({ error: messageChain(error), code: error.code, details: error.details }), {
    status: error.status,
    headers: { "content-type": "application/json", ...headersFor(error) },
  });
}

/** The message and those of the causes that were written for clients; other causes may name host paths. */
function messageChain(error: AgentError): string {
  const messages = [error.message];
  let cause = error.cause;
  while (cause instanceof AgentError && cause.code !== "INTERNAL") {
    messages.push(cause.message);
    cause = cause.cause;
  }
  return messages.join(": ");
}

function headersFor(error: AgentError): Record<string, string> {
  switch (error.code) {
    case "AUTH_REQUIRED":
      return { "www-authenticate": "Bearer" };
    case "METHOD_NOT_ALLOWED":
      return { allow: (error.details.allow as string[]).join(", ") };
    case "RANGE_NOT_SATISFIABLE": {
      const { size } = error.details;
      return typeof size === "number" ? { "content-range": `bytes */${size}` } : {};
    }
    case "RATE_LIMITED":
      return { "retry-after": String(error.details.retry_after_seconds) };
    case "UPLOADS_BUSY":
      return { "retry-after": "1", connection: "close" };
    // The rest of the body is not read, so the connection cannot carry another request.
    case "BODY_TOO_LARGE":
    case "BODY_TOO_SLOW":
    case "SHUTTING_DOWN":
      return { connection: "close" };
    default:
      return {};
  }
}
