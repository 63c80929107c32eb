// The configuration schema as a plain tree: what messages, the generated file and the documentation read.
import { z } from "zod";
import { configSchema } from "./schema.ts";

/** A key that holds a value. */
export interface ValueNode {
  readonly kind: "value";
  readonly description: string;
  /** What the value must be, in words, for example `an integer from 1 to 90`. */
  readonly expected: string;
  /** Null: unset. */
  readonly default: unknown;
  /** True when the key must be there, which only keys of arrays of tables can demand. */
  readonly required: boolean;
  readonly later: boolean;
  readonly secret: boolean;
  /** Words that a choice offers, else empty. */
  readonly choices: readonly string[];
}

/** A table; with `repeated` an array of tables. `open` tables take any key (options of plugins). */
export interface TableNode {
  readonly kind: "table";
  readonly description: string;
  readonly repeated: boolean;
  readonly open: boolean;
  readonly later: boolean;
  readonly expected: string;
  readonly keys: ReadonlyMap<string, OutlineNode>;
}

export type OutlineNode = ValueNode | TableNode;

/** The part of JSON Schema that the configuration schema produces. */
interface SchemaNode {
  readonly type?: string | readonly string[];
  readonly anyOf?: readonly SchemaNode[];
  readonly enum?: readonly string[];
  readonly properties?: Readonly<Record<string, SchemaNode>>;
  readonly items?: SchemaNode;
  readonly required?: readonly string[];
  readonly additionalProperties?: boolean | SchemaNode;
  readonly minimum?: number;
  readonly maximum?: number;
  readonly default?: unknown;
  readonly description?: string;
  readonly expected?: string;
  readonly later?: boolean;
  readonly secret?: boolean;
}

const ARTICLES: Readonly<Record<string, string>> = {
  string: "a string",
  boolean: "true or false",
  integer: "an integer",
  number: "a number",
};

/** The whole file. */
export const outline: TableNode = tableNode(z.toJSONSchema(configSchema, { io: "input" }) as SchemaNode, false, {});

/** The node that a path leads to (numbers are places in arrays of tables), or null. */
export function nodeAt(path: readonly PropertyKey[]): OutlineNode | null {
  let node: OutlineNode = outline;
  for (const part of path) {
    if (typeof part === "number") continue;
    if (node.kind !== "table") return null;
    const next = node.keys.get(String(part));
    if (next === undefined) return null;
    node = next;
  }
  return node;
}

/** Every value key with its path; arrays of tables count as one step. */
export function* valueKeys(
  table: TableNode = outline,
  path: readonly string[] = [],
): Generator<{ readonly path: readonly string[]; readonly node: ValueNode }> {
  for (const [name, node] of table.keys) {
    if (node.kind === "table") yield* valueKeys(node, [...path, name]);
    else yield { path: [...path, name], node };
  }
}

/** Nothing of it is in this build. */
export function isLater(node: OutlineNode): boolean {
  if (node.later || node.kind === "value") return node.later;
  return !node.open && [...node.keys.values()].every(isLater);
}

function tableNode(schema: SchemaNode, repeated: boolean, outer: SchemaNode): TableNode {
  const required = new Set(schema.required);
  const keys = new Map<string, OutlineNode>();
  for (const [name, child] of Object.entries(schema.properties ?? {})) keys.set(name, node(child, required.has(name)));
  return {
    kind: "table",
    description: outer.description ?? schema.description ?? "",
    repeated,
    open: schema.properties === undefined,
    later: outer.later ?? schema.later ?? false,
    expected: outer.expected ?? schema.expected ?? (repeated ? "an array of tables" : "a table"),
    keys,
  };
}

function node(schema: SchemaNode, required: boolean): OutlineNode {
  if (schema.type === "object") return tableNode(schema, false, schema);
  if (schema.type === "array" && schema.items?.type === "object") return tableNode(schema.items, true, schema);
  const value = withoutNull(schema);
  return {
    kind: "value",
    description: schema.description ?? "",
    expected: schema.expected ?? expectation(value),
    default: schema.default ?? null,
    required,
    later: schema.later ?? false,
    secret: schema.secret ?? false,
    choices: value.enum ?? value.items?.enum ?? [],
  };
}

/** "Unset" is null inside and cannot be written in TOML, so it is no part of what is expected. */
function withoutNull(schema: SchemaNode): SchemaNode {
  const branch = schema.anyOf?.find((candidate) => candidate.type !== "null");
  if (branch !== undefined) return branch;
  if (typeof schema.type !== "object") return schema;
  return { ...schema, type: schema.type.find((type) => type !== "null") };
}

function expectation(schema: SchemaNode): string {
  if (schema.enum !== undefined) return `one of ${schema.enum.map((word) => `"${word}"`).join(", ")}`;
  if (schema.type === "array") return `a list; each entry ${expectation(schema.items ?? {})}`;
  const noun = ARTICLES[String(schema.type)] ?? String(schema.type);
  return noun + range(schema.minimum, schema.maximum);
}

function range(minimum: number | undefined, maximum: number | undefined): string {
  if (minimum === undefined || maximum === undefined) return "";
  if (maximum === Number.MAX_SAFE_INTEGER) return `, ${minimum} or more`;
  return ` from ${minimum} to ${maximum}`;
}
