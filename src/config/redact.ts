// The configuration without its secrets, for `config show` and records of it.
import type { JsonObject } from "../contracts/json.ts";
import { isLater, outline, type TableNode } from "./outline.ts";
import type { Config } from "./schema.ts";

/** Stands in the place of a secret that is set. */
export const REDACTED = "(set)";

/**
 * A copy in which every secret is replaced, and every key left out that is unset, so that TOML can hold it, or whose
 * feature this build does not have, so that nothing is shown as in force that is not.
 */
export function redacted(config: Config): JsonObject {
  return redactTable(config as unknown as JsonObject, outline);
}

function redactTable(values: JsonObject, table: TableNode): JsonObject {
  const copy: JsonObject = {};
  for (const [name, value] of Object.entries(values)) {
    const node = table.keys.get(name);
    // Options of plugins are the plugins' own; which of them are secrets is not known here.
    if (node === undefined || value === null || isLater(node)) continue;
    if (node.kind === "value") copy[name] = node.secret ? REDACTED : value;
    else if (node.open) copy[name] = redactOpen(value as JsonObject);
    else if (node.repeated) copy[name] = (value as JsonObject[]).map((entry) => redactTable(entry, node));
    else copy[name] = redactTable(value as JsonObject, node);
  }
  return copy;
}

function redactOpen(options: JsonObject): JsonObject {
  const hide = (entries: JsonObject): JsonObject =>
    Object.fromEntries(
      Object.entries(entries).map(([name, value]) => [
        name,
        typeof value === "boolean" || typeof value === "number" ? value : REDACTED,
      ]),
    );
  return Object.fromEntries(Object.entries(options).map(([id, entries]) => [id, hide(entries as JsonObject)]));
}
