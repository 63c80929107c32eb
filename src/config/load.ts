// Reads a configuration file: finds it, parses it, and answers either a whole configuration or every problem with its
// line, key, what was expected and the nearest known key. Values are never part of a message: they may be secrets.
import { stat } from "node:fs/promises";
import { homedir } from "node:os";
import { join } from "node:path";
import type { z } from "zod";
import { AgentError } from "../errors/agent-error.ts";
import { limits } from "./limits.ts";
import { nearest } from "./nearest.ts";
import { nodeAt, type OutlineNode, outline, type TableNode, valueKeys } from "./outline.ts";
import { relations } from "./relations.ts";
import { tomlValue } from "./render.ts";
import { type Config, configSchema } from "./schema.ts";
import { type KeyPath, type TomlLines, tomlLines } from "./toml-lines.ts";

export interface ConfigProblem {
  readonly line: number;
  /** Dotted key, or an empty string when the text itself is at fault. */
  readonly key: string;
  readonly message: string;
}

export interface LoadedConfig {
  readonly config: Config;
  /** Null: no file was named and none exists, so everything is at its default. */
  readonly path: string | null;
  readonly warnings: readonly string[];
}

const SYSTEM_PATH = "/etc/fluxvm/config.toml";
const KEYS_LISTED_MAX = 16;

/** Where an ordinary user's file is, and root's. `init` writes it, `loadConfig` reads it when nothing else is named. */
export function defaultConfigPath(environment: NodeJS.ProcessEnv = process.env): string {
  if (process.geteuid?.() === 0) return SYSTEM_PATH;
  const base = environment.XDG_CONFIG_HOME;
  return join(base?.startsWith("/") ? base : join(homedir(), ".config"), "fluxvm", "config.toml");
}

/** The file that `loadConfig` reads, or null where it reads none. */
export async function configPath(
  path: string | undefined,
  environment: NodeJS.ProcessEnv = process.env,
): Promise<string | null> {
  const named = path ?? (environment.FLUXVM_CONFIG || undefined);
  return named ?? (await firstExisting([defaultConfigPath(environment), SYSTEM_PATH]));
}

/**
 * Loads the file named by `path`, else by `FLUXVM_CONFIG`, else the default one if it exists, else all defaults.
 * Throws `AgentError` `CONFIG_INVALID`.
 */
export async function loadConfig(
  path: string | undefined,
  environment: NodeJS.ProcessEnv = process.env,
): Promise<LoadedConfig> {
  const file = await configPath(path, environment);
  if (file === null) return { config: configSchema.parse({}), path: null, warnings: [] };
  const { source, mode } = await readSource(file);
  const config = parseConfig(source, file);
  return { config, path: file, warnings: permissionWarnings(config, file, mode) };
}

/** Parses a configuration text. `file` is only named in messages. Throws `AgentError` `CONFIG_INVALID`. */
export function parseConfig(source: string, file: string): Config {
  const lines = tomlLines(source);
  const document = parseToml(source, file, lines);
  const parsed = configSchema.safeParse(document);
  if (!parsed.success) {
    throw invalid(
      file,
      parsed.error.issues.flatMap((issue) => problemsOf(issue, document, lines)),
    );
  }
  const config = parsed.data;
  const problems = [
    ...laterProblems(config, lines),
    ...relations
      .filter((relation) => relation.broken(config))
      .map((relation) => problem(relation.key, relation.message, lines)),
  ];
  if (problems.length > 0) throw invalid(file, problems);
  return config;
}

async function firstExisting(files: readonly string[]): Promise<string | null> {
  for (const file of files) if (await Bun.file(file).exists()) return file;
  return null;
}

async function readSource(file: string): Promise<{ source: string; mode: number }> {
  try {
    const status = await stat(file);
    if (!status.isFile()) throw new AgentError("CONFIG_INVALID", `${file}: not a regular file`);
    if (status.size > limits.configFileMaxBytes) {
      throw new AgentError("CONFIG_INVALID", `${file}: larger than ${limits.configFileMaxBytes} bytes`);
    }
    const bytes = await Bun.file(file).bytes();
    return { source: new TextDecoder("utf-8", { fatal: true }).decode(bytes), mode: status.mode & 0o777 };
  } catch (error) {
    if (error instanceof AgentError) throw error;
    if (error instanceof TypeError) throw new AgentError("CONFIG_INVALID", `${file}: not UTF-8 text`);
    const code = (error as NodeJS.ErrnoException).code ?? "unreadable";
    const fault = code === "ENOENT" ? "no such file; fluxctl init writes one" : `cannot be read (${code})`;
    throw new AgentError("CONFIG_INVALID", `${file}: ${fault}`, { cause: error });
  }
}

function parseToml(source: string, file: string, lines: TomlLines): unknown {
  try {
    return Bun.TOML.parse(source);
  } catch (error) {
    // The parser quotes what it stumbled over, which may be a secret: its words up to the quotation are enough.
    const words = error instanceof Error ? error.message.replace(/^TOML Parse error: /, "") : "not TOML";
    const message = words.replace(/: ".*$/s, "");
    throw invalid(file, [{ line: faultLine(source, lines), key: "", message }]);
  }
}

/** The parser names no line: the fault is in the first statement up to which the text does not parse. */
function faultLine(source: string, { statements, stoppedAtLine }: TomlLines): number {
  let low = 0;
  let high = statements.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (parses(source.slice(0, statements[middle]?.end))) low = middle + 1;
    else high = middle;
  }
  return statements[low]?.line ?? stoppedAtLine ?? 1;
}

function parses(source: string): boolean {
  try {
    Bun.TOML.parse(source);
    return true;
  } catch {
    return false;
  }
}

function problemsOf(issue: z.core.$ZodIssue, document: unknown, lines: TomlLines): ConfigProblem[] {
  const path = issue.path as KeyPath;
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => problem([...path, key], unknownKey(path, key), lines));
  }
  // Rules that are written beside a key say themselves what is wrong, without its value.
  if (issue.code === "custom") return [problem(path, issue.message, lines)];
  const expected = nodeAt(path)?.expected ?? nodeAt(path.slice(0, -1))?.expected ?? "a plain value";
  const value = valueAt(document, path);
  return [problem(path, `expected ${expected}, found ${value === undefined ? "nothing" : typeWord(value)}`, lines)];
}

function unknownKey(tablePath: KeyPath, key: string): string {
  const table = (nodeAt(tablePath) ?? outline) as TableNode;
  const place = tablePath.filter((part) => typeof part === "string").join(".");
  const where = place === "" ? "the top level" : `[${place}]`;
  const near = nearest(key, table.keys.keys());
  if (near !== null) return `unknown key, expected a key of ${where}; the nearest is "${near}"`;
  const elsewhere = [...valueKeys()].find(({ path }) => path.at(-1) === key);
  if (elsewhere !== undefined) {
    return `unknown key, expected a key of ${where}; "${elsewhere.path.join(".")}" is known`;
  }
  const known = [...table.keys.keys()];
  const list = known.slice(0, KEYS_LISTED_MAX).join(", ") + (known.length > KEYS_LISTED_MAX ? ", …" : "");
  return `unknown key, expected a key of ${where}: ${list}`;
}

function laterProblems(config: Config, lines: TomlLines): ConfigProblem[] {
  const defaults = configSchema.parse({});
  const problems: ConfigProblem[] = [];
  const visit = (table: TableNode, path: readonly string[]): void => {
    for (const [name, node] of table.keys) {
      const keyPath = [...path, name];
      if (node.later) {
        if (!Bun.deepEquals(valueAt(config, keyPath), valueAt(defaults, keyPath), true)) {
          problems.push(problem(keyPath, `not available in this build; expected ${defaultWords(node)}`, lines));
        }
      } else if (node.kind === "table" && !node.repeated) {
        visit(node, keyPath);
      }
    }
  };
  visit(outline, []);
  return problems;
}

function defaultWords(node: OutlineNode): string {
  if (node.kind === "table" || node.default === null) return "no such key";
  return `its default, ${tomlValue(node.default)}, or no such key`;
}

function valueAt(value: unknown, path: KeyPath): unknown {
  let at: unknown = value;
  for (const part of path) {
    if (typeof at !== "object" || at === null || !Object.hasOwn(at, part)) return undefined;
    at = (at as Record<string | number, unknown>)[part];
  }
  return at;
}

/** The type of a value in TOML's words; numbers with their value, since they are never secret. */
function typeWord(value: unknown): string {
  if (typeof value === "number") return String(value);
  if (typeof value === "boolean") return String(value);
  if (typeof value === "string") return value === "" ? "an empty string" : "a string";
  if (Array.isArray(value)) return "a list";
  return Object.prototype.toString.call(value) === "[object Object]" ? "a table" : "a date or time";
}

function problem(path: KeyPath, message: string, lines: TomlLines): ConfigProblem {
  return { line: lines.line(path), key: dotted(path), message };
}

function dotted(path: KeyPath): string {
  const parts = path.map((part) => {
    if (typeof part === "number") return `[${part}]`;
    return /^[A-Za-z0-9_-]+$/.test(part) ? part : JSON.stringify(part);
  });
  return parts.join(".").replaceAll(".[", "[");
}

function invalid(file: string, problems: readonly ConfigProblem[]): AgentError {
  const sorted = problems.toSorted((a, b) => a.line - b.line);
  const text = sorted.map(({ line, key, message }) => `${file}:${line}: ${key === "" ? "" : `${key}: `}${message}`);
  return new AgentError("CONFIG_INVALID", text.join("\n"), {
    details: { file, problems: sorted.map(({ line, key, message }) => ({ line, key, message })) },
  });
}

function permissionWarnings(config: Config, file: string, mode: number): string[] {
  const warnings: string[] = [];
  const octal = mode.toString(8).padStart(4, "0");
  if (config.auth.tokens.length > 0 && (mode & 0o044) !== 0) {
    warnings.push(`${file} holds tokens and others can read it (mode ${octal}); run: chmod 600 ${file}`);
  }
  if ((mode & 0o022) !== 0) {
    warnings.push(`${file} can be changed by others (mode ${octal}); run: chmod 600 ${file}`);
  }
  return warnings;
}
