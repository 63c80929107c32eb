// Runs a program of the machine and waits for it. A program ends with this process, whatever ends it.
import { outputOf, type ProgramOptions } from "../../harness/program.ts";

/** In front of an argument list. */
export const ENDS_WITH_US = ["setpriv", "--pdeathsig", "KILL", "--"] as const;

/**
 * Runs `argv` to its end, with `env` added to this process's environment, and returns its standard output.
 * @throws Error with the end of what it said when it does not exit with 0
 */
export function run(argv: readonly string[], options: ProgramOptions = {}): Promise<string> {
  return outputOf([...ENDS_WITH_US, ...argv], { ...options, env: { ...process.env, ...options.env } });
}
