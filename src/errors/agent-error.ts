// The one error type that the agent throws on purpose. Its code decides the status; nobody matches on the text.
import { catalogue, type ErrorCode } from "./catalogue.ts";
import type { JsonObject } from "../contracts/json.ts";

/** A failure with a code of the catalogue. `details` goes to the client, so it never holds a secret. */
export class AgentError extends Error {
  override readonly name = "AgentError";
  readonly code: ErrorCode;
  readonly details: JsonObject;

  /** `message` defaults to the catalogue's literal, which some clients match on. */
  constructor(code: ErrorCode, message?: string, options: { details?: JsonObject; cause?: unknown } = {}) {
    super(message ?? catalogue[code].message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.details = options.details ?? {};
  }

  get status(): number {
    return catalogue[this.code].status;
  }
}

/** Turns anything thrown into an `AgentError`; what is not one already becomes `INTERNAL` with the cause chained. */
export function asAgentError(error: unknown): AgentError {
  if (error instanceof AgentError) return error;
  return new AgentError("INTERNAL", undefined, { cause: error });
}
