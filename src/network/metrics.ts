// What the network fabric reports to.

export interface NetworkMetrics {
  /** A policy was put in force for a sandbox that is connected, or could not be. */
  policyApplied(outcome: "ok" | "failed", durationMs: number): void;
}
