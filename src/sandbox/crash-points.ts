// The moments at which a test may end the agent: before and after every step that the journal protects. The seam does
// nothing in production; `test` hooks kill the process or never return.

export const CRASH_POINTS = [
  // Journal steps, for every resource of every owner. Several of one name happen in an operation.
  "ledger.intent",
  "ledger.made",
  "ledger.updated",
  "ledger.releasing",
  "ledger.released",
  // Create.
  "create.before-accept",
  "create.accepted",
  "create.volume",
  "create.starting",
  "create.launched",
  "create.ready",
  "create.undone",
  "create.gone",
  // Stop and start.
  "stop.journalled",
  "stop.ended",
  "stop.released",
  "start.journalled",
  "start.launched",
  "start.ready",
  // The network of a run.
  "network.prepared",
  "network.attached",
  "network.up",
  // Pause and resume.
  "pause.journalled",
  "pause.frozen",
  "resume.journalled",
  "resume.thawed",
  // Remove.
  "remove.journalled",
  "remove.ended",
  "remove.released",
  "remove.gone",
  "lease.freed",
  // An instance that ended by itself.
  "ended.journalled",
  "ended.released",
  // Change-sets.
  "baseline.written",
  "baseline.renamed",
  "dry-run.cloned",
  "dry-run.launched",
  "dry-run.ran",
  "dry-run.discarding",
  "dry-run.discarded",
  // A dry-run in the sandbox itself.
  "dry-run.saved",
  "dry-run.reverting",
  "dry-run.reverted",
] as const;

export type CrashPoint = (typeof CRASH_POINTS)[number];

/** Called and awaited at each point. */
export type CrashHook = (point: CrashPoint) => void | Promise<void>;
