// Checks that a value is a plugin definition of this contract version before any of its code runs.
import { CONTRACT_VERSION, PLUGIN_KINDS, type PluginDefinition, type PluginKind } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";

const ID_PATTERN = /^[a-z0-9][a-z0-9-]{0,31}$/;
const SUMMARY_MAX_CHARS = 200;

/** Returns `value` as a definition. Throws `PLUGIN_REFUSED` with every problem in one message. */
export function checkDefinition(value: unknown): PluginDefinition {
  if (typeof value !== "object" || value === null) {
    throw new AgentError("PLUGIN_REFUSED", "the plugin is not a definition; write `export default definePlugin({…})`");
  }
  const problems = definitionProblems(value as Record<string, unknown>);
  if (problems.length > 0) throw new AgentError("PLUGIN_REFUSED", `not a usable definition: ${problems.join("; ")}`);
  return value as PluginDefinition;
}

/** Whether `value` is one of the plugin kinds. */
export function isPluginKind(value: unknown): value is PluginKind {
  return PLUGIN_KINDS.includes(value as PluginKind);
}

function definitionProblems(candidate: Record<string, unknown>): string[] {
  const problems: string[] = [];
  if (!isPluginKind(candidate.kind)) problems.push(`kind must be one of ${PLUGIN_KINDS.join(", ")}`);
  if (typeof candidate.id !== "string" || !ID_PATTERN.test(candidate.id)) {
    problems.push("id must be 1 to 32 of a-z, 0-9 and -, and not begin with -");
  }
  if (candidate.contractVersion !== CONTRACT_VERSION) {
    problems.push(`contractVersion is ${String(candidate.contractVersion)}, this build has ${CONTRACT_VERSION}`);
  }
  if (!isSummary(candidate.summary)) problems.push(`summary must be one line of 1 to ${SUMMARY_MAX_CHARS} characters`);
  if (!isSchema(candidate.options)) problems.push("options must be a zod schema");
  for (const method of ["probe", "init"]) {
    if (typeof candidate[method] !== "function") problems.push(`${method} must be a function`);
  }
  return problems;
}

function isSummary(value: unknown): boolean {
  return typeof value === "string" && value.length >= 1 && value.length <= SUMMARY_MAX_CHARS && !/[\r\n]/.test(value);
}

function isSchema(value: unknown): boolean {
  return typeof value === "object" && value !== null && typeof Reflect.get(value, "safeParse") === "function";
}
