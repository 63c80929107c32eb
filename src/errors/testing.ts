// What work that must be refused says, for tests.
import { AgentError } from "./agent-error.ts";

/** The error that `run` throws. Throws when it throws another kind, or nothing. */
export function refusal(run: () => unknown): AgentError {
  try {
    run();
  } catch (error) {
    return expected(error);
  }
  throw new Error("it was not refused");
}

/** The code with which work rejects. Rejects when it rejects otherwise, or not at all. */
export async function codeOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => null,
    (error: unknown) => error,
  );
  return expected(error).code;
}

function expected(error: unknown): AgentError {
  if (!(error instanceof AgentError)) throw new Error("expected an AgentError", { cause: error });
  return error;
}
