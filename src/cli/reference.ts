// `docs/command-line.md`, made from the table of commands.
import { CLIENT_OPTIONS, type Command, GLOBAL_OPTIONS, type OptionSpec } from "./command.ts";
import { usage } from "./help.ts";

/** The reference of every command, in Markdown. */
export function commandLineReference(commands: readonly Command[]): string {
  const lines = [
    "# Command line",
    "",
    "<!-- Generated from src/cli/commands.ts by `bun src/cli/generate-docs.ts`; do not edit. -->",
    "",
    "`fluxctl` is both the agent and its client. `fluxctl help` lists the commands, `fluxctl COMMAND --help` explains one.",
    "",
    "```sh",
    "fluxctl init                                  # a commented configuration with a token",
    "fluxctl serve &                               # or, for a systemd unit: fluxctl install",
    "ID=$(fluxctl sandbox create)",
    "echo 'print(\"hello\")' | fluxctl sandbox write $ID hello.py",
    "fluxctl sandbox baseline $ID",
    "fluxctl sandbox exec $ID -- 'python3 hello.py > out; rm hello.py'",
    "fluxctl sandbox changes $ID                   # + /out, - /hello.py",
    "fluxctl sandbox dry-run $ID -- 'rm -rf *'     # shows what it would change, keeps nothing",
    "fluxctl sandbox shell $ID                     # a terminal, as with ssh",
    "fluxctl sandbox cp -r src $ID:/src            # and back: cp $ID:/out out",
    "fluxctl sandbox delete $ID",
    "",
    "VM=$(fluxctl create --template micro --ready exec)",
    "fluxctl exec $VM -- uname -r",
    "fluxctl snapshot $VM clean                    # memory and disk",
    "fluxctl logs -f $VM                           # its console",
    "```",
    "",
    "- **Sandboxes** are named by id, by exact name, or by the first characters of the id, four at least.",
    "- **Output** is for people, or with `-o json` for programs. Text from a sandbox is escaped before it is printed; only",
    "  `exec`, `run`, `shell`, `attach`, `logs`, `read`, `cp` and `dry-run` write a sandbox's bytes as they are.",
    "- **Exit status**: 0 done; 1 refused, with code and message on one line of stderr; 2 wrong usage; 3 the agent cannot be",
    "  reached. `sandbox exec`, `run`, `shell`, `attach` and `dry-run` exit with the status of the command in the sandbox.",
    "- **Address**: `--url`, else `FLUXVM_URL`, else what the configuration of this host says. `http://`, `https://` and",
    "  `unix:/PATH` work.",
    "- **Token**: `--token-file`, else `FLUXVM_TOKEN`; when the address comes from the configuration, the first admin token",
    "  there. A token is never an argument, and the configured one is never sent to another address.",
    "",
    "## Options of every command",
    "",
    ...optionTable(GLOBAL_OPTIONS),
    "",
    "## Options of every command that talks to an agent",
    "",
    ...optionTable(CLIENT_OPTIONS),
  ];
  for (const command of commands) lines.push("", ...section(command));
  return `${lines.join("\n")}\n`;
}

function section(command: Command): string[] {
  const lines = [`## fluxctl ${command.path.join(" ")}`, "", `\`${usage(command)}\``, "", command.summary];
  if (command.details !== undefined) lines.push("", command.details);
  if (command.options.length > 0) lines.push("", ...optionTable(command.options));
  return lines;
}

function optionTable(options: readonly OptionSpec[]): string[] {
  const rows = options.map(({ name, short, value, choices, repeated, description }) => {
    const words = `${short === undefined ? "" : `-${short}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
    const offered = choices === undefined ? "" : ` One of ${choices.map((choice) => `\`${choice}\``).join(", ")}.`;
    return `| \`${words}\` | ${description}${offered}${repeated ? " May be repeated." : ""} |`;
  });
  return ["| Option | Meaning |", "| --- | --- |", ...rows];
}
