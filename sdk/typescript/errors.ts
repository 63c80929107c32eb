// The two ways in which a call fails: the agent said no, or nothing is known of its answer.

/** The agent answered that it cannot or will not. Match on `code`. */
export class ApiError extends Error {
  override readonly name = "ApiError";

  constructor(
    /** HTTP status; 0 when the failure came at the end of a stream. */
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Readonly<Record<string, unknown>> = {},
    /** The whole answer, where it was an object. */
    readonly body: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }
}

/** The agent could not be reached, or its answer did not come. */
export class UnreachableError extends Error {
  override readonly name = "UnreachableError";
}
