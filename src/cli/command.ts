// What a command is: data from which parsing, help, completion and the documentation are made, and one function.
import type { Terminal } from "./terminal.ts";

/** `value` is the placeholder of what follows the option; without it the option is a switch. */
export interface OptionSpec {
  readonly name: string;
  readonly short?: string;
  readonly value?: string;
  /** The words that may follow; also offered by completion. */
  readonly choices?: readonly string[];
  readonly repeated?: boolean;
  readonly description: string;
}

/** A word after the command. `rest`: it and all that follow, the only kind that may also stand after `--`. */
export interface ArgumentSpec {
  readonly name: string;
  readonly optional?: boolean;
  readonly rest?: boolean;
  readonly choices?: readonly string[];
}

export interface Command {
  readonly path: readonly string[];
  readonly summary: string;
  readonly arguments: readonly ArgumentSpec[];
  readonly options: readonly OptionSpec[];
  /** Whether it talks to an agent and so takes the connection options. */
  readonly client: boolean;
  /** More than the summary, for its own help. */
  readonly details?: string;
  /** Answers the exit status. Throws `UsageError`, `ApiError`, `UnreachableError` or `AgentError`. */
  readonly run: (invocation: Invocation, terminal: Terminal) => Promise<number>;
}

/** What was typed, checked against the command's table. */
export interface Invocation {
  /** The value of an option, the last when it was given several times. */
  text(name: string): string | undefined;
  texts(name: string): readonly string[];
  flag(name: string): boolean;
  /** An integer option from `min` to `max`; throws `UsageError` otherwise. */
  integer(name: string, min: number, max: number): number | undefined;
  /** An argument that the table demands. */
  argument(name: string): string;
  optionalArgument(name: string): string | undefined;
  /** The words of the `rest` argument. */
  readonly rest: readonly string[];
  readonly output: OutputFormat;
}

export const OUTPUT_FORMATS = ["table", "json"] as const;
export type OutputFormat = (typeof OUTPUT_FORMATS)[number];

/** The command line itself is wrong: exit status 2. */
export class UsageError extends Error {
  override readonly name = "UsageError";
}

export const EXIT = { success: 0, failure: 1, usage: 2, unreachable: 3 } as const;

export const GLOBAL_OPTIONS: readonly OptionSpec[] = [
  { name: "help", short: "h", description: "Show help." },
  { name: "output", short: "o", value: "FORMAT", choices: OUTPUT_FORMATS, description: "Form of the output." },
  { name: "config", value: "FILE", description: "Configuration file; FLUXVM_CONFIG." },
];

export const CLIENT_OPTIONS: readonly OptionSpec[] = [
  { name: "url", value: "URL", description: "Address of the agent; FLUXVM_URL, else what the configuration says." },
  { name: "token-file", value: "FILE", description: "File that holds the bearer token; FLUXVM_TOKEN holds the token." },
  { name: "ca", value: "FILE", description: "Authority of the agent's certificate, PEM; FLUXVM_CA." },
  { name: "cert", value: "FILE", description: "Client certificate, PEM; FLUXVM_CERT." },
  { name: "key", value: "FILE", description: "Key of the client certificate, PEM; FLUXVM_KEY." },
];

/** Every option that a command takes. */
export function optionsOf(command: Command): readonly OptionSpec[] {
  return [...command.options, ...(command.client ? CLIENT_OPTIONS : []), ...GLOBAL_OPTIONS];
}
