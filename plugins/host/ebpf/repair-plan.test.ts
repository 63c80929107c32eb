// Every combination of what can be found has one step, and the worst finding decides.
import { describe, expect, test } from "bun:test";
import { type HookState, type RepairStep, repairStep } from "./repair-plan.ts";

const STATES: readonly HookState[] = ["ours", "older", "gone", "foreign"];

function expected(record: number | null, hooks: readonly HookState[], fingerprint: string | null): RepairStep {
  if (hooks.some((hook) => hook === "foreign")) return "refuse";
  if (record !== 7) return "attach";
  if (hooks.some((hook) => hook === "gone")) {
    return fingerprint === "aa" && hooks.every((hook) => hook !== "older") ? "hook" : "attach";
  }
  if (hooks.some((hook) => hook === "older")) return "swap";
  return fingerprint === "aa" ? "none" : "fill";
}

describe("the step that repairs", () => {
  for (const record of [7, 8, null]) {
    for (const inward of STATES) {
      for (const outward of STATES) {
        for (const fingerprint of ["aa", "bb", null]) {
          test(`record ${record}, in ${inward}, out ${outward}, in force ${fingerprint}`, () => {
            const seen = {
              recordedInterface: record,
              presentInterface: 7,
              hooks: { in: inward, out: outward },
              fingerprintInForce: fingerprint,
              wantedFingerprint: "aa",
            };
            expect(repairStep(seen)).toBe(expected(record, [inward, outward], fingerprint));
          });
        }
      }
    }
  }
});
