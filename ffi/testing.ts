// What work of the host that must fail says, for the tests of this folder.
import { HostError } from "./status.ts";

/** The name of the host's error (`ENOENT`) with which work rejects. Rejects when it rejects otherwise, or not at all. */
export async function codeOf(work: Promise<unknown>): Promise<string> {
  const error = await work.then(
    () => null,
    (error: unknown) => error,
  );
  if (!(error instanceof HostError)) throw new Error("expected a HostError", { cause: error });
  return error.code;
}
