// The option `--env`, which gives variables to a command or to a whole sandbox.
import { type Invocation, type OptionSpec, UsageError } from "./command.ts";
import type { Terminal } from "./terminal.ts";

/** `description` says to whom. */
export function environmentOption(description: string): OptionSpec {
  return {
    name: "env",
    value: "NAME[=VALUE]",
    repeated: true,
    description: `${description}; a NAME alone takes the value that fluxctl has.`,
  };
}

/** Throws `UsageError` for a name that is empty, or alone and not in fluxctl's own environment. */
export function environmentFrom(invocation: Invocation, terminal: Terminal): Record<string, string> {
  return Object.fromEntries(
    invocation.texts("env").map((word) => {
      const at = word.indexOf("=");
      const name = at < 0 ? word : word.slice(0, at);
      const value = at < 0 ? terminal.environment[name] : word.slice(at + 1);
      if (name === "") throw new UsageError("--env takes NAME=VALUE, or a NAME that is set here");
      if (value === undefined) throw new UsageError(`--env ${name}: fluxctl has no such variable; give ${name}=VALUE`);
      return [name, value];
    }),
  );
}
