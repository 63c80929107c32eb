// A conformance case as data, and what running one answers. Suites are lists of cases, so that the test runner and
// `fluxctl plugin test` can both run them.
import { AgentError } from "../errors/agent-error.ts";
import { callWithin } from "../registry/faults.ts";

export interface ConformanceCase<Context> {
  readonly name: string;
  /** Capabilities without which the case says nothing; it is then skipped and names them. */
  readonly requires?: readonly string[];
  run(context: Context): Promise<void>;
}

export interface CaseResult {
  readonly name: string;
  readonly outcome: "passed" | "failed" | "skipped";
  /** Failed: what went wrong. Skipped: the missing capability. */
  readonly reason: string | null;
  readonly durationMs: number;
}

/** Thrown by a case that finds out on its way that a capability is missing. */
export class MissingCapabilityError extends Error {
  override readonly name = "MissingCapabilityError";

  constructor(readonly capability: string) {
    super(`missing capability: ${capability}`);
  }
}

/** Ends the case as skipped unless `held`. */
export function needs(held: boolean, capability: string): asserts held {
  if (!held) throw new MissingCapabilityError(capability);
}

/** Runs one case and answers its result; one that takes longer than `deadlineMs` counts as hung. Never rejects. */
export async function runCase<Context>(
  testCase: ConformanceCase<Context>,
  capabilities: ReadonlySet<string>,
  context: Context,
  deadlineMs: number,
): Promise<CaseResult> {
  const startedMs = performance.now();
  const result = (outcome: CaseResult["outcome"], reason: string | null): CaseResult => ({
    name: testCase.name,
    outcome,
    reason,
    durationMs: Math.round(performance.now() - startedMs),
  });
  const missing = (testCase.requires ?? []).filter((capability) => !capabilities.has(capability));
  if (missing.length > 0) return result("skipped", `missing capability: ${missing.join(", ")}`);
  try {
    await callWithin(deadlineMs, "the case", () => testCase.run(context));
    return result("passed", null);
  } catch (error) {
    if (error instanceof MissingCapabilityError) return result("skipped", error.message);
    return result("failed", describeFailure(error));
  }
}

/** A failure with its causes, on one line. */
export function describeFailure(error: unknown): string {
  const parts: string[] = [];
  for (let at: unknown = error; at !== undefined && at !== null && parts.length < 4;) {
    const code = at instanceof AgentError ? `${at.code}: ` : "";
    parts.push(`${code}${at instanceof Error ? at.message : String(at)}`);
    at = at instanceof Error ? at.cause : undefined;
  }
  return parts.join(" ← ").slice(0, 4000);
}
