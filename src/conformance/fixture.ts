// What a plugin's author tells the suites beside the definition, as `export const conformance = {…}` in the same file.
import { z } from "zod";
import { AgentError } from "../errors/agent-error.ts";
import { describeIssues } from "../registry/probe.ts";

const json = z.record(z.string(), z.json());

const fixtureSchema = z.strictObject({
  /** Options of the plugin, as the operator would write them. */
  options: json.default({}),
  /** Backends: a request that `plan` accepts. */
  request: json.default({}),
  /** Backends: requests that `plan` must refuse with a 4xx code. */
  badRequests: z.array(json).max(1000).default([]),
  /** How long one case may take before it counts as hung; a machine that is emulated takes its time. */
  caseDeadlineSecs: z.int().min(1).max(3600).default(60),
});

export type Fixture = z.output<typeof fixtureSchema>;

/** Fills in defaults. Throws `PLUGIN_REFUSED` when the value has another form. */
export function parseFixture(value: unknown): Fixture {
  const parsed = fixtureSchema.safeParse(value ?? {});
  if (parsed.success) return parsed.data;
  throw new AgentError("PLUGIN_REFUSED", `the conformance export is not valid: ${describeIssues(parsed.error)}`);
}
