// How long a command may be, however it is run.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";

/** Throws `COMMAND_TOO_LARGE` when the words of a command have more than 1 MiB together. */
export function checkCommandLength(words: readonly string[]): void {
  if (words.reduce((sum, word) => sum + Buffer.byteLength(word), 0) > limits.commandMaxBytes) {
    throw new AgentError("COMMAND_TOO_LARGE");
  }
}
