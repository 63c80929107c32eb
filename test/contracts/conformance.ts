// Runs a conformance suite under `bun test`: one test a case. A case that a missing capability of this host prevents
// counts as skipped and says which; a facet that a plugin does not have by design is named by its test.
import { describe, expect, test } from "bun:test";
import { type ConformanceOptions, runConformance } from "../../src/conformance/run.ts";
import type { PluginDefinition } from "../../src/contracts/plugin.ts";
import { hostFacts, noGuest, silentLog } from "../../src/registry/testing.ts";

interface Expectation extends Partial<ConformanceOptions> {
  /** Facets that this plugin does not have; exactly their cases must report themselves as skipped. */
  readonly lacks?: readonly string[];
}

/** Runs the suite of the definition's kind and declares its results as tests. */
export async function describeConformance(
  title: string,
  definition: PluginDefinition,
  { lacks = [], ...options }: Expectation = {},
): Promise<void> {
  const report = await runConformance(definition, { host: hostFacts(), guest: noGuest, log: silentLog, ...options });
  const byDesign = new Set(lacks.map((facet) => `missing capability: ${facet}`));

  describe(`${title} conforms`, () => {
    test.skipIf(report.missing.length > 0)(
      ["is usable here", ...report.missing.map(({ reason }) => reason)].join(": "),
      () => {
        expect(report.cases.length).toBeGreaterThan(0);
      },
    );

    test("lacks only the facets that it is known to lack", () => {
      const reasons = report.cases.filter(({ outcome }) => outcome === "skipped").map(({ reason }) => reason ?? "");
      const absent = [...byDesign].filter((reason) => !reasons.includes(reason));
      expect(report.missing.length > 0 ? [] : absent).toEqual([]);
    });

    for (const result of report.cases.filter(({ reason }) => !byDesign.has(reason ?? ""))) {
      const skipped = result.outcome === "skipped";
      test.skipIf(skipped)(skipped ? `${result.name} (${result.reason})` : result.name, () => {
        expect({ outcome: result.outcome, reason: result.reason }).toEqual({ outcome: "passed", reason: null });
      });
    }
  });
}
