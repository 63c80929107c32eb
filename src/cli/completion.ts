// Shell completion, made from the table of commands: one list of words for each path that can have been typed.
import { type Command, GLOBAL_OPTIONS, type OptionSpec, optionsOf } from "./command.ts";

export const SHELLS = ["bash", "zsh", "fish"] as const;
export type Shell = (typeof SHELLS)[number];

/** After these words of a path, these words and options may come. */
interface Stage {
  readonly path: string;
  readonly words: readonly string[];
  readonly options: readonly OptionSpec[];
}

/** The script that the shell reads. */
export function completionScript(shell: Shell, commands: readonly Command[]): string {
  const stages = stagesOf(commands);
  switch (shell) {
    case "bash":
      return bashScript(stages);
    case "zsh":
      return zshScript(stages);
    case "fish":
      return fishScript(commands);
  }
}

function stagesOf(commands: readonly Command[]): readonly Stage[] {
  const groups = new Map<string, Set<string>>();
  for (const { path } of commands) {
    for (let length = 0; length < path.length; length++) {
      const prefix = path.slice(0, length).join(" ");
      const words = groups.get(prefix) ?? new Set();
      groups.set(prefix, words.add(path[length] as string));
    }
  }
  return [
    ...[...groups].map(([path, words]) => ({ path, words: [...words], options: GLOBAL_OPTIONS })),
    ...commands.map((command) => ({
      path: command.path.join(" "),
      words: command.arguments.flatMap(({ choices }) => choices ?? []),
      options: optionsOf(command),
    })),
  ];
}

/** The options whose next word is a value, and what that value may be. */
function valueCases(stages: readonly Stage[]): readonly { names: string; choices: readonly string[] }[] {
  const cases = new Map<string, readonly string[]>();
  for (const { name, short, value, choices } of stages.flatMap(({ options }) => options)) {
    if (value === undefined) continue;
    cases.set(short === undefined ? `--${name}` : `--${name}|-${short}`, choices ?? []);
  }
  return [...cases].map(([names, choices]) => ({ names, choices }));
}

const flagsOf = (options: readonly OptionSpec[]): string => options.map(({ name }) => `--${name}`).join(" ");

/** Shared by bash and zsh: the path typed so far, then the words that may follow. */
function stageCases(stages: readonly Stage[], indent: string): string {
  return stages
    .map(
      ({ path, words, options }) => `${indent}"${path}") words="${[...words, flagsOf(options)].join(" ").trim()}" ;;`,
    )
    .join("\n");
}

function bashScript(stages: readonly Stage[]): string {
  const known = stages.map(({ path }) => `"${path}"`).join(" ");
  const values = valueCases(stages)
    .map(({ names, choices }) =>
      choices.length === 0
        ? `    ${names}) compopt -o default 2>/dev/null; return ;;`
        : `    ${names}) COMPREPLY=($(compgen -W "${choices.join(" ")}" -- "$current")); return ;;`,
    )
    .join("\n");
  return `# bash completion of fluxctl; put it into /etc/bash_completion.d or source it.
_fluxctl() {
  local current="\${COMP_WORDS[COMP_CWORD]}" previous="\${COMP_WORDS[COMP_CWORD-1]}" path="" word next words i
  local known=(${known})
  COMPREPLY=()
  case "$previous" in
${values}
  esac
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="\${COMP_WORDS[i]}"
    [ "$word" = -- ] && { compopt -o default 2>/dev/null; return; }
    next="\${path:+$path }$word"
    for words in "\${known[@]}"; do [ "$words" = "$next" ] && path="$next"; done
  done
  words=""
  case "$path" in
${stageCases(stages, "    ")}
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
  [ \${#COMPREPLY[@]} -eq 0 ] && compopt -o default 2>/dev/null
  return 0
}
complete -F _fluxctl fluxctl
`;
}

function zshScript(stages: readonly Stage[]): string {
  const known = stages.map(({ path }) => `"${path}"`).join(" ");
  const values = valueCases(stages)
    .map(
      ({ names, choices }) =>
        `    ${names}) ${choices.length === 0 ? "_files" : `compadd -- ${choices.join(" ")}`}; return ;;`,
    )
    .join("\n");
  return `#compdef fluxctl
# zsh completion of fluxctl; put it into a directory of $fpath as _fluxctl.
_fluxctl() {
  local previous="\${words[CURRENT-1]}" typed="" word next each offered
  local -a known
  known=(${known})
  case "$previous" in
${values}
  esac
  for word in "\${(@)words[2,CURRENT-1]}"; do
    [[ "$word" == -- ]] && { _files; return }
    next="\${typed:+$typed }$word"
    for each in "\${known[@]}"; do [[ "$each" == "$next" ]] && typed="$next"; done
  done
  case "$typed" in
${stageCases(stages, "    ").replaceAll(" words=", " offered=")}
  esac
  compadd -- \${=offered} || _files
}
if [[ "\${funcstack[1]}" == _fluxctl ]]; then _fluxctl "$@"; else compdef _fluxctl fluxctl; fi
`;
}

function fishScript(commands: readonly Command[]): string {
  const lines = [
    "# fish completion of fluxctl; put it into ~/.config/fish/completions/fluxctl.fish.",
    "complete -c fluxctl -f",
  ];
  const first = new Set(commands.map(({ path }) => path[0] as string));
  const before = `not __fish_seen_subcommand_from ${[...first].join(" ")}`;
  for (const word of first) {
    const single = commands.find(({ path }) => path.length === 1 && path[0] === word);
    lines.push(`complete -c fluxctl -n "${before}" -a ${word} -d ${fishText(single?.summary ?? `${word} commands`)}`);
  }
  for (const command of commands) {
    const [group, word] = command.path;
    if (word !== undefined) {
      const siblings = commands.filter(({ path }) => path[0] === group).map(({ path }) => path[1]);
      const at = `__fish_seen_subcommand_from ${group}; and not __fish_seen_subcommand_from ${siblings.join(" ")}`;
      lines.push(`complete -c fluxctl -n "${at}" -a ${word} -d ${fishText(command.summary)}`);
    }
    const at = command.path.map((part) => `__fish_seen_subcommand_from ${part}`).join("; and ");
    for (const { choices } of command.arguments) {
      if (choices !== undefined) lines.push(`complete -c fluxctl -n "${at}" -a "${choices.join(" ")}"`);
    }
    for (const option of optionsOf(command)) lines.push(`complete -c fluxctl -n "${at}" ${fishOption(option)}`);
  }
  return `${lines.join("\n")}\n`;
}

function fishOption({ name, short, value, choices, description }: OptionSpec): string {
  const words = [`-l ${name}`];
  if (short !== undefined) words.unshift(`-s ${short}`);
  if (choices !== undefined) words.push("-x", `-a "${choices.join(" ")}"`);
  else if (value !== undefined) words.push("-r", "-F");
  return `${words.join(" ")} -d ${fishText(description)}`;
}

function fishText(text: string): string {
  return `'${text.replaceAll("\\", "\\\\").replaceAll("'", "\\'")}'`;
}
