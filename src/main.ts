// The program `fluxctl`: one command line, one exit status.
import { commands } from "./cli/commands.ts";
import { runCommandLine } from "./cli/run.ts";
import { processTerminal } from "./cli/terminal.ts";

process.exitCode = await runCommandLine(commands, process.argv.slice(2), processTerminal());
