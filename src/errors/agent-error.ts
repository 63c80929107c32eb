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

/** What the kernel says when a disk, a quota or the inodes of a file system are used up. */
const FULL: ReadonlySet<unknown> = new Set(["ENOSPC", "EDQUOT"]);

/** Whether what was thrown, by the standard library or by a native one, means that the host has no room. */
export function isHostFull(error: unknown): boolean {
  return error instanceof Error && FULL.has((error as NodeJS.ErrnoException).code);
}

/**
 * Turns anything thrown into an `AgentError`; what is not one already becomes `HOST_FULL` where the kernel had no room,
 * else `INTERNAL`, with the cause chained.
 */
export function asAgentError(error: unknown): AgentError {
  if (error instanceof AgentError) return error;
  return new AgentError(isHostFull(error) ? "HOST_FULL" : "INTERNAL", undefined, { cause: error });
}
