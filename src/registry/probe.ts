// Runs one plugin's probe and checks its answer: a probe is a plugin's code, so it may hang, throw or answer nonsense.
import { z } from "zod";
import type { HostFacts, PluginDefinition, ProbeReport } from "../contracts/plugin.ts";
import { AgentError } from "../errors/agent-error.ts";
import { asPluginFault, callWithin, pluginName } from "./faults.ts";

const word = z.string().regex(/^[a-z0-9][a-z0-9_-]{0,63}$/);
const sentence = z.string().min(1).max(2000);

const reportSchema = z
  .object({
    usable: z.boolean(),
    capabilities: z.array(word).max(64),
    missing: z.array(z.object({ capability: word, reason: sentence, remedy: sentence })).max(64),
  })
  .refine((report) => report.usable || report.missing.length > 0, "it is unusable here but names no reason");

/** Answers the probe's report. Rejects with `PLUGIN_FAULT` when it throws, hangs past `deadlineMs` or breaks its form. */
export async function runProbe(
  definition: PluginDefinition,
  host: HostFacts,
  options: unknown,
  deadlineMs: number,
): Promise<ProbeReport> {
  const plugin = pluginName(definition.kind, definition.id);
  let answer: unknown;
  try {
    answer = await callWithin(deadlineMs, "the probe", () => definition.probe(host, options));
  } catch (thrown) {
    throw probeFault(plugin, thrown);
  }
  const parsed = reportSchema.safeParse(answer);
  if (!parsed.success) {
    throw probeFault(plugin, new Error(`the report is not valid: ${describeIssues(parsed.error)}`));
  }
  return parsed.data;
}

/** One line that says where a value breaks its schema, without the value itself: it may be a secret. */
export function describeIssues(error: z.ZodError): string {
  const lines = error.issues.map(({ path, message }) =>
    path.length === 0 ? message : `${path.join(".")}: ${message}`,
  );
  return lines.join("; ");
}

function probeFault(plugin: string, thrown: unknown): AgentError {
  const cause = thrown instanceof AgentError ? new Error(thrown.message, { cause: thrown }) : thrown;
  return asPluginFault(plugin, "probe", cause);
}
