// Texts that are made from the schema: the commented file that `fluxctl init` writes and `docs/configuration.md`.
import type { JsonObject } from "../contracts/json.ts";
import { isLater, outline, type TableNode, valueKeys, type ValueNode } from "./outline.ts";

/** Values that `init` writes instead of comments, by dotted key. */
export type Settings = Readonly<Record<string, string | number | boolean>>;

const WIDTH = 118;

/** The commented configuration: every key of this build with its default, plus one admin token and `settings`. */
export function starterConfig(adminToken: string, settings: Settings): string {
  const known = new Set([...valueKeys()].map(({ path }) => path.join(".")));
  for (const key of Object.keys(settings)) if (!known.has(key)) throw new Error(`not a configuration key: ${key}`);
  const text = [
    "# Configuration of FluxVM. Every key is shown with its default; to change one, remove the # and set the value.",
    "# `fluxctl config check` judges this file, `fluxctl config show` prints what is in force.",
    "",
    ...tableLines(outline, [], settings),
    "",
    "# The token that `fluxctl` uses on this host. Keep this file readable by its owner only.",
    "[[auth.tokens]]",
    `token = ${tomlValue(adminToken)}`,
    'role = "admin"',
    'name = "admin"',
  ];
  return `${text.join("\n")}\n`;
}

function tableLines(table: TableNode, path: readonly string[], settings: Settings): string[] {
  const lines: string[] = [];
  const present = [...table.keys].filter(([, node]) => !isLater(node));
  for (const [name, node] of present) {
    if (node.kind === "value") lines.push(...valueLines([...path, name], node, settings));
  }
  for (const [name, node] of present) {
    if (node.kind !== "table") continue;
    const header = [...path, name].join(".");
    if (node.open) {
      lines.push("", ...comment(node.description), `# [${header}.ID]`);
    } else if (node.repeated) {
      // The tokens are written by `starterConfig` itself, after everything else.
      if (header !== "auth.tokens") lines.push("", ...exampleLines(node, header));
    } else {
      lines.push("", ...comment(node.description), `[${header}]`, ...tableLines(node, [...path, name], settings));
    }
  }
  return lines;
}

/** What an entry of an array of tables has, without one. */
function exampleLines(table: TableNode, header: string): string[] {
  const keys = [...table.keys].flatMap(([name, node]) =>
    node.kind === "value" && !node.later ? comment(`${name}: ${node.description} (${node.expected})`) : [],
  );
  return [...comment(table.description), `# [[${header}]]`, ...keys];
}

function valueLines(path: readonly string[], node: ValueNode, settings: Settings): string[] {
  const name = path.at(-1);
  const chosen = settings[path.join(".")];
  const lines = comment(`${node.description} (${node.expected})`);
  if (chosen !== undefined) lines.push(`${name} = ${tomlValue(chosen)}`);
  else if (node.default === null) lines.push(`# ${name} is unset`);
  else lines.push(`# ${name} = ${tomlValue(node.default)}`);
  return lines;
}

/** Comment lines of at most `WIDTH` characters. */
function comment(text: string): string[] {
  const lines: string[] = [];
  let line = "#";
  for (const word of text.split(" ")) {
    if (line.length + 1 + word.length > WIDTH) {
      lines.push(line);
      line = "#";
    }
    line += ` ${word}`;
  }
  return [...lines, line];
}

/** The reference of every key, in Markdown. */
export function configurationReference(): string {
  const text = [
    "# Configuration",
    "",
    "<!-- Generated from src/config/schema.ts by `bun src/cli/generate-docs.ts`; do not edit. -->",
    "",
    "One TOML file configures the agent. `fluxctl serve --config FILE` names it; else `FLUXVM_CONFIG`; else, as root,",
    "`/etc/fluxvm/config.toml`, and for another user `~/.config/fluxvm/config.toml` before that. Without a file every key",
    "is at its default. `fluxctl init` writes a commented file with a token, `fluxctl config check` judges a file, and",
    "`fluxctl config show` prints what is in force, without secrets.",
    "",
    "A key that is not listed here, or a value of the wrong type, stops the start with the file, the line, the key, what",
    "was expected and the nearest known key. A key marked *later* belongs to a feature that this build does not have: set",
    "to anything but its default it is refused as well.",
    "",
    "Tokens are secrets: keep the file at mode 0600. No command prints them and no message quotes them.",
    "",
    ...referenceLines(outline, []),
    "## Environment",
    "",
    "| Variable | Read by | Meaning |",
    "| --- | --- | --- |",
    "| `FLUXVM_CONFIG` | every command | Path of the configuration file. |",
    "| `FLUXVM_URL` | client commands | Address of the agent: `http://…`, `https://…` or `unix:/PATH`. |",
    "| `FLUXVM_TOKEN` | client commands | Bearer token. |",
    "| `FLUXVM_CA` | client commands | PEM file of the authority that signs the agent's certificate. |",
    "| `FLUXVM_CERT`, `FLUXVM_KEY` | client commands | PEM files of the client's certificate and key (mTLS). |",
    "| `FLUXVM_BPF_META_ROOT` | `fluxctl serve`, `fluxctl uninstall --purge` | Where it is written down what is attached, instead of `<run_dir>/ebpf`; one agent's alone, and not to be changed while sandboxes run. |",
    "| `FLUXVM_BPF_PIN_ROOT` | `fluxctl uninstall --purge` | One more place of pins to clear. |",
    "| `FLUXVM_TCX` | `fluxctl serve` | `off`: the dataplane attaches by clsact filters; `required`: by TCX links or not at all. |",
  ];
  return `${text.join("\n")}\n`;
}

function referenceLines(table: TableNode, path: readonly string[]): string[] {
  const heading =
    path.length === 0 ? "Top level" : table.repeated ? `\`[[${path.join(".")}]]\`` : `\`[${path.join(".")}]\``;
  const lines = [`## ${heading}`, ""];
  if (table.description !== "") lines.push(`${table.description}${table.later ? " *Later.*" : ""}`, "");
  const values = [...table.keys].filter(([, node]) => node.kind === "value") as [string, ValueNode][];
  if (values.length > 0) {
    lines.push("| Key | Value | Default | Meaning |", "| --- | --- | --- | --- |");
    for (const [name, node] of values) {
      const mark = node.later && !table.later ? " *Later.*" : "";
      lines.push(`| \`${name}\` | ${cell(node.expected)} | ${defaultCell(node)} | ${cell(node.description)}${mark} |`);
    }
    lines.push("");
  }
  for (const [name, node] of table.keys) {
    if (node.kind === "table") lines.push(...referenceLines(node, [...path, name]));
  }
  return lines;
}

function defaultCell(node: ValueNode): string {
  if (node.required) return "required";
  return node.default === null ? "unset" : `\`${cell(tomlValue(node.default))}\``;
}

const cell = (text: string): string => text.replaceAll("|", "\\|");

/** A value as TOML writes it on one line. */
export function tomlValue(value: unknown): string {
  const document = Bun.TOML.stringify({ value } as JsonObject);
  return document.slice(document.indexOf("=") + 1).trim();
}
