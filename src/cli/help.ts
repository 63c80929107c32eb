// Help, made from the table of commands.
import { CLIENT_OPTIONS, type Command, GLOBAL_OPTIONS, type OptionSpec, UsageError } from "./command.ts";

/** Help for a command, for a group (a path that several commands begin with), or for everything. */
export function helpText(commands: readonly Command[], path: readonly string[]): string {
  const command = commands.find((candidate) => candidate.path.join(" ") === path.join(" "));
  if (command !== undefined) return commandHelp(command);
  const group = commands.filter((candidate) => path.every((word, index) => candidate.path[index] === word));
  if (group.length === 0) throw new UsageError(`no command is called ${JSON.stringify(path.join(" "))}`);
  const title = path.length === 0 ? "fluxctl: sandboxes for code that is not trusted" : `fluxctl ${path.join(" ")}`;
  const lines = [
    title,
    "",
    `Usage: fluxctl ${[...path, "COMMAND"].join(" ")} [OPTIONS]`,
    "",
    "Commands:",
    ...aligned(group.map((entry) => [entry.path.join(" "), entry.summary])),
    "",
    "Options:",
    ...aligned(GLOBAL_OPTIONS.map(optionRow)),
    "",
    `fluxctl ${[...path, "COMMAND"].join(" ")} --help tells more.`,
  ];
  return `${lines.join("\n")}\n`;
}

/** The words after `fluxctl`, as help and documentation show them. */
export function usage(command: Command): string {
  const words = command.arguments.map((argument) => {
    const dots = argument.rest ? "…" : "";
    return argument.optional ? `[${argument.name}${dots}]` : `${argument.name}${dots}`;
  });
  const options = command.options.length + (command.client ? CLIENT_OPTIONS.length : 0) > 0 ? ["[OPTIONS]"] : [];
  const takesCommand = command.arguments.some(({ name, rest, optional }) => rest && !optional && name === "COMMAND");
  if (takesCommand) words.splice(-1, 0, "--");
  const order = takesCommand ? [words[0], ...options, ...words.slice(1)] : [...options, ...words];
  return ["fluxctl", ...command.path, ...order].join(" ");
}

function commandHelp(command: Command): string {
  const lines = [command.summary, "", `Usage: ${usage(command)}`];
  if (command.details !== undefined) lines.push("", command.details);
  if (command.options.length > 0) lines.push("", "Options:", ...aligned(command.options.map(optionRow)));
  if (command.client) lines.push("", "Connection:", ...aligned(CLIENT_OPTIONS.map(optionRow)));
  lines.push("", "General:", ...aligned(GLOBAL_OPTIONS.map(optionRow)));
  return `${lines.join("\n")}\n`;
}

function optionRow({ name, short, value, choices, repeated, description }: OptionSpec): [string, string] {
  const words = `${short === undefined ? "    " : `-${short}, `}--${name}${value === undefined ? "" : ` ${value}`}`;
  const offered = choices === undefined ? "" : ` (${choices.join(", ")})`;
  return [words, `${description}${offered}${repeated ? " May be repeated." : ""}`];
}

function aligned(rows: readonly (readonly [string, string])[]): string[] {
  const width = Math.max(...rows.map(([left]) => left.length));
  return rows.map(([left, right]) => `  ${left.padEnd(width)}  ${right}`);
}
