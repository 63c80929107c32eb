// Turns an argument vector into a command and its invocation, or into a usage error with the nearest known word.
import { parseArgs, type ParseArgsConfig } from "node:util";
import { nearest } from "../config/nearest.ts";
import {
  type Command,
  GLOBAL_OPTIONS,
  type Invocation,
  OUTPUT_FORMATS,
  type OptionSpec,
  optionsOf,
  type OutputFormat,
  UsageError,
} from "./command.ts";

export type Parsed =
  | { readonly kind: "run"; readonly command: Command; readonly invocation: Invocation }
  /** Help was asked for, for a command, for a group of commands, or for all. */
  | { readonly kind: "help"; readonly path: readonly string[] };

/** Parses the words after the program's name. Throws `UsageError`. */
export function parseCommandLine(commands: readonly Command[], args: readonly string[]): Parsed {
  // What many programs answer to, so people try it before they look for the command.
  const words = args[0] === "--version" ? ["version", ...args.slice(1)] : args;
  const { path, others } = splitPath(commands, words);
  const command = commands.find((candidate) => same(candidate.path, path));
  if (command === undefined) {
    if (path.length === 0 && others.length === 0) return { kind: "help", path };
    if (others.some((word) => word === "--help" || word === "-h")) return { kind: "help", path };
    throw unknownCommand(commands, path, others);
  }
  const options = parseOptions(command, others);
  if (options.values.has("help")) return { kind: "help", path };
  return { kind: "run", command, invocation: invocationOf(command, options) };
}

/** Takes the words of the command's path out of the arguments; global options may stand before them. */
function splitPath(commands: readonly Command[], args: readonly string[]): { path: string[]; others: string[] } {
  const path: string[] = [];
  const others: string[] = [];
  let at = 0;
  for (; at < args.length; at++) {
    const word = args[at] as string;
    if (word.startsWith("-") && word !== "--") {
      others.push(word);
      if (takesNextWord(word) && at + 1 < args.length) others.push(args[++at] as string);
    } else if (commands.some(({ path: known }) => startsWith(known, [...path, word]))) {
      path.push(word);
      if (commands.some(({ path: known }) => same(known, path)))
        return { path, others: [...others, ...args.slice(at + 1)] };
    } else {
      break;
    }
  }
  return { path, others: [...others, ...args.slice(at)] };
}

function takesNextWord(word: string): boolean {
  return GLOBAL_OPTIONS.some(
    ({ name, short, value }) => value !== undefined && (word === `--${name}` || word === `-${short}`),
  );
}

function unknownCommand(commands: readonly Command[], path: readonly string[], others: readonly string[]): UsageError {
  const word = others.find((candidate) => !candidate.startsWith("-"));
  const known = [...new Set(commands.filter((c) => startsWith(c.path, path)).map((c) => c.path[path.length] ?? ""))];
  const prefix = path.length === 0 ? "" : `${path.join(" ")} `;
  if (word === undefined) return new UsageError(`${prefix}needs a command, one of: ${known.join(", ")}`);
  const near = nearest(word, known);
  const hint = near === null ? `; expected one of: ${known.join(", ")}` : `; did you mean "${prefix}${near}"?`;
  return new UsageError(`unknown command ${quote(prefix + word)}${hint}`);
}

interface ParsedOptions {
  readonly values: ReadonlyMap<string, readonly string[]>;
  readonly before: readonly string[];
  /** Words after `--`, or null without it. */
  readonly after: readonly string[] | null;
}

function parseOptions(command: Command, args: readonly string[]): ParsedOptions {
  const specs = optionsOf(command);
  const config: NonNullable<ParseArgsConfig["options"]> = {};
  for (const { name, short, value } of specs) {
    config[name] = { type: value === undefined ? "boolean" : "string", ...(short === undefined ? {} : { short }) };
  }
  const { tokens } = parseArgs({
    args: [...args],
    options: config,
    strict: false,
    allowPositionals: true,
    tokens: true,
  });
  const values = new Map<string, string[]>();
  const before: string[] = [];
  let after: string[] | null = null;
  for (const token of tokens) {
    if (token.kind === "option-terminator") after = [];
    else if (token.kind === "positional") (after ?? before).push(token.value);
    else {
      const spec = specs.find(({ name }) => name === token.name);
      if (spec === undefined) throw unknownOption(command, specs, token.rawName);
      values.set(spec.name, [...(values.get(spec.name) ?? []), optionValue(spec, token)]);
    }
  }
  return { values, before, after };
}

function optionValue(spec: OptionSpec, token: { value?: string; inlineValue?: boolean; rawName: string }): string {
  if (spec.value === undefined) {
    if (token.value !== undefined) throw new UsageError(`${token.rawName} takes no value`);
    return "";
  }
  const looksLikeOption = !token.inlineValue && token.value !== undefined && /^-[^0-9]/.test(token.value);
  if (token.value === undefined || looksLikeOption)
    throw new UsageError(`${token.rawName} needs a value: ${spec.value}`);
  if (spec.choices !== undefined && !spec.choices.includes(token.value)) {
    throw new UsageError(`${token.rawName} takes one of: ${spec.choices.join(", ")}`);
  }
  return token.value;
}

/** Only the name is shown: a value that follows may be a secret that was typed by mistake. */
function unknownOption(command: Command, specs: readonly OptionSpec[], rawName: string): UsageError {
  const names = specs.map(({ name }) => name);
  const word = rawName.replace(/^-+/, "");
  const near = names.find((name) => word.length > 1 && name.startsWith(word)) ?? nearest(word, names);
  const hint = near === null ? "" : `; did you mean --${near}?`;
  const takesRest = command.arguments.some(({ rest }) => rest);
  const rest = takesRest ? " (put -- before words that are not for fluxctl)" : "";
  return new UsageError(`unknown option ${quote(rawName)} of ${command.path.join(" ")}${hint}${rest}`);
}

function invocationOf(command: Command, { values, before, after }: ParsedOptions): Invocation {
  const words = [...before];
  const named = new Map<string, string>();
  let rest: readonly string[] = [];
  for (const argument of command.arguments) {
    if (argument.rest) {
      rest = [...words.splice(0), ...(after ?? [])];
      if (rest.length === 0 && !argument.optional) throw missing(command, argument.name);
      continue;
    }
    const word = words.shift();
    if (word === undefined) {
      if (argument.optional) continue;
      throw missing(command, argument.name);
    }
    if (argument.choices !== undefined && !argument.choices.includes(word)) {
      throw new UsageError(`${argument.name} is one of: ${argument.choices.join(", ")}`);
    }
    named.set(argument.name, word);
  }
  const extra = words[0] ?? (command.arguments.some((argument) => argument.rest) ? undefined : after?.[0]);
  if (extra !== undefined) throw new UsageError(`unexpected argument ${quote(extra)} of ${command.path.join(" ")}`);
  return {
    text: (name) => values.get(name)?.at(-1),
    texts: (name) => values.get(name) ?? [],
    flag: (name) => values.has(name),
    integer: (name, min, max) => integerOption(values.get(name)?.at(-1), name, min, max),
    argument: (name) => named.get(name) ?? "",
    optionalArgument: (name) => named.get(name),
    rest,
    output: (values.get("output")?.at(-1) ?? OUTPUT_FORMATS[0]) as OutputFormat,
  };
}

function integerOption(value: string | undefined, name: string, min: number, max: number): number | undefined {
  if (value === undefined) return undefined;
  const number = /^-?\d{1,16}$/.test(value) ? Number(value) : Number.NaN;
  if (!(number >= min && number <= max)) throw new UsageError(`--${name} takes an integer from ${min} to ${max}`);
  return number;
}

function missing(command: Command, name: string): UsageError {
  return new UsageError(`${command.path.join(" ")} needs ${name}`);
}

function startsWith(words: readonly string[], prefix: readonly string[]): boolean {
  return prefix.every((word, index) => words[index] === word);
}

function same(one: readonly string[], other: readonly string[]): boolean {
  return one.length === other.length && startsWith(one, other);
}

function quote(text: string): string {
  return JSON.stringify(text.length > 64 ? `${text.slice(0, 64)}…` : text);
}
