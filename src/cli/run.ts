// Runs one command line: parses it, runs the command, and turns whatever is thrown into one line on stderr and an exit
// status (1 refused, 2 wrong usage, 3 the agent cannot be reached).
import { ApiError, UnreachableError } from "../../sdk/typescript/errors.ts";
import { AgentError } from "../errors/agent-error.ts";
import { type Command, EXIT, UsageError } from "./command.ts";
import { printable } from "./escape.ts";
import { helpText } from "./help.ts";
import { parseCommandLine } from "./parse.ts";
import type { Terminal } from "./terminal.ts";

/** Answers the exit status; never rejects. */
export async function runCommandLine(
  commands: readonly Command[],
  args: readonly string[],
  terminal: Terminal,
): Promise<number> {
  try {
    const parsed = parseCommandLine(commands, args);
    if (parsed.kind === "run") return await parsed.command.run(parsed.invocation, terminal);
    await terminal.out(helpText(commands, parsed.path));
    return EXIT.success;
  } catch (error) {
    const { status, text } = failureOf(error);
    // When stderr is gone too there is nobody left to tell.
    await terminal.err(text).catch(() => undefined);
    return status;
  }
}

function failureOf(error: unknown): { status: number; text: string } {
  if (error instanceof UsageError) return { status: EXIT.usage, text: `fluxctl: ${printable(error.message)}\n` };
  if (error instanceof UnreachableError) {
    return { status: EXIT.unreachable, text: `fluxctl: UNREACHABLE: ${printable(error.message)}\n` };
  }
  if (error instanceof ApiError) {
    const hint = error.code === "AUTH_REQUIRED" ? "; set FLUXVM_TOKEN or give --token-file" : "";
    return { status: EXIT.failure, text: `fluxctl: ${printable(error.code)}: ${printable(error.message)}${hint}\n` };
  }
  if (error instanceof AgentError) return { status: EXIT.failure, text: agentFailure(error) };
  // Whoever read our output has seen enough, as in `fluxctl … | head`.
  if ((error as NodeJS.ErrnoException | null)?.code === "EPIPE") return { status: EXIT.failure, text: "" };
  const message = error instanceof Error ? error.message : String(error);
  return { status: EXIT.failure, text: `fluxctl: ${printable(message)}\n` };
}

/** A configuration may have several problems, each with its own line. */
function agentFailure({ code, message }: AgentError): string {
  const lines = message.split("\n").map((line) => `fluxctl: ${code}: ${printable(line)}\n`);
  return lines.join("");
}
