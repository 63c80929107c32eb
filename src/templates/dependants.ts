// Who needs the files of a template after it was made: a machine reads its kernel at every start, and its disk lies over
// the template's image for as long as there is one.
import { realpath } from "node:fs/promises";
import type { Json, JsonObject } from "../contracts/json.ts";
import { AgentError } from "../errors/agent-error.ts";

const NAMED_MAX = 100;

/** A sandbox or a pool, and what it was made from. */
export interface Dependant {
  /** `sandbox ID` or `pool NAME`. */
  readonly name: string;
  readonly specification: JsonObject;
}

/** Rejects with `TEMPLATE_IN_USE`, which names them, when a specification leads to a file below `directory`. */
export async function assertUnused(name: string, directory: string, dependants: readonly Dependant[]): Promise<void> {
  const users: string[] = [];
  for (const { name: user, specification } of dependants) {
    for (const path of pathsIn(specification)) {
      if (!(await leadsBelow(path, directory))) continue;
      users.push(user);
      break;
    }
  }
  if (users.length === 0) return;
  const shown = users.slice(0, NAMED_MAX);
  const more = users.length > shown.length ? ` and ${users.length - shown.length} more` : "";
  throw new AgentError("TEMPLATE_IN_USE", `the template ${name} is in use by ${shown.join(", ")}${more}`, {
    details: { dependants: shown },
  });
}

function pathsIn(value: Json): string[] {
  if (typeof value === "string") return value.startsWith("/") ? [value] : [];
  if (typeof value !== "object" || value === null) return [];
  return Object.values(value).flatMap((inside) => pathsIn(inside as Json));
}

/** By its name, or by where the name leads. */
async function leadsBelow(path: string, directory: string): Promise<boolean> {
  if (path.startsWith(`${directory}/`)) return true;
  const [target, place] = await Promise.all([path, directory].map((each) => realpath(each).catch(() => each)));
  return target?.startsWith(`${place}/`) === true;
}
