// The life of a sandbox as data: the durable phases, the legal moves between them, and the two vocabularies that the
// wire has for a phase (`state`, eight words; `status`, five words). Nothing else decides what may follow what.

/** Legal successors of each durable phase. Staying where one is is always legal. */
const SUCCESSORS = {
  creating: ["starting", "failed", "removing"],
  starting: ["ready", "stopping", "failed", "removing"],
  ready: ["stopping", "pausing", "failed", "removing"],
  stopping: ["stopped", "failed", "removing"],
  stopped: ["starting", "removing"],
  // A failed sandbox still has its workspace, so it may be started again.
  failed: ["starting", "removing"],
  pausing: ["paused", "ready", "failed", "removing"],
  paused: ["resuming", "failed", "removing"],
  resuming: ["paused", "ready", "failed", "removing"],
  removing: [],
} as const;

export type Phase = keyof typeof SUCCESSORS;
export const PHASES = Object.keys(SUCCESSORS) as readonly Phase[];

/** What may follow `From`; an illegal literal move does not compile. */
export type Successor<From extends Phase> = (typeof SUCCESSORS)[From][number];

export function isLegalMove(from: Phase, to: Phase): boolean {
  return from === to || (SUCCESSORS[from] as readonly Phase[]).includes(to);
}

/** The wire's `state` words. `running` is a ready sandbox with a command in it and is never stored. */
export const STATES = ["starting", "ready", "running", "stopping", "stopped", "failed", "pausing", "paused"] as const;
export type State = (typeof STATES)[number];

const STATE_OF_PHASE = {
  creating: "starting",
  starting: "starting",
  ready: "ready",
  stopping: "stopping",
  stopped: "stopped",
  failed: "failed",
  pausing: "pausing",
  paused: "paused",
  resuming: "starting",
  removing: "stopping",
} as const satisfies Record<Phase, State>;

/** `removalFailed`: something of a sandbox that is being removed could not be released, so a caller must act. */
export function stateOf(phase: Phase, runningCommands: number, removalFailed: boolean): State {
  if (phase === "ready" && runningCommands > 0) return "running";
  if (phase === "removing" && removalFailed) return "failed";
  return STATE_OF_PHASE[phase];
}

/** The `status` words of the VM record. */
export const STATUSES = ["creating", "running", "paused", "stopped", "failed"] as const;
export type Status = (typeof STATUSES)[number];

const STATUS_OF_STATE = {
  starting: "creating",
  ready: "running",
  running: "running",
  stopping: "running",
  pausing: "paused",
  paused: "paused",
  stopped: "stopped",
  failed: "failed",
} as const satisfies Record<State, Status>;

export function statusOf(state: State): Status {
  return STATUS_OF_STATE[state];
}

/** The event that a move emits, or null where the move is not news to anybody outside. */
export function eventOf(from: Phase | null, to: Phase): string | null {
  if (from === to) return null;
  if (to === "creating") return "sandbox.created";
  if (to === "ready") return from === "resuming" ? "sandbox.resumed" : "sandbox.ready";
  if (to === "starting" || to === "resuming" || to === "removing") return null;
  return `sandbox.${to}`;
}
