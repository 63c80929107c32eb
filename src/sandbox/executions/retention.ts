// Which executions that are over a sandbox still keeps: so many, and so much of their output. The one that ended first
// goes first, and one that somebody reads, or may come back to, goes last or not at all.
import { limits } from "../../config/limits.ts";
import type { HeldExecution } from "./execution.ts";
import { RingBudget } from "./ring-budget.ts";

/** What counts of an execution. */
export type Kept = Pick<HeldExecution, "id" | "stored" | "running" | "idle" | "abandoned" | "diskBytes">;

export interface RetentionHooks {
  /** Every execution of the table. */
  readonly all: () => Iterable<Kept>;
  /** Drops one that is idle from the table and gives its room back in this call. */
  readonly forget: (execution: Kept) => void;
}

export class Retention {
  /** What all outputs of the sandbox share. */
  readonly budget = new RingBudget(limits.executionRingsTotalMaxBytes, {
    bytes: () => this.#abandonedBytes(),
    reserved: () => this.#reservedBytes(),
    evict: () => this.#forgetOne(isAbandoned, takesRoom) || this.#forgetOne(isIdle, takesRoom),
  });
  readonly #hooks: RetentionHooks;
  readonly #graceMs: number;
  #trimTimer: Timer | null = null;
  #closed = false;

  /** `graceMs`: how long after an end it is abandoned at the earliest. */
  constructor(hooks: RetentionHooks, graceMs: number = limits.executionReattachGraceMs) {
    this.#hooks = hooks;
    this.#graceMs = graceMs;
  }

  /** Makes place for one more execution; false when none may go. */
  makePlace(): boolean {
    return this.#forgetOne(isIdle);
  }

  /** An execution has ended: once nobody comes back to it, it counts as what is only kept. */
  ended(): void {
    if (this.#closed) return;
    this.#trimTimer ??= setTimeout(() => this.#trim(), this.#graceMs).unref();
  }

  close(): void {
    this.#closed = true;
    if (this.#trimTimer !== null) clearTimeout(this.#trimTimer);
    this.#trimTimer = null;
  }

  #trim(): void {
    this.#trimTimer = null;
    while (this.#abandonedBytes() > limits.executionRingsKeptMaxBytes && this.#forgetOne(isAbandoned, takesRoom));
    for (const { idle, abandoned } of this.#hooks.all()) {
      if (idle && !abandoned) return this.ended();
    }
  }

  #abandonedBytes(): number {
    let bytes = 0;
    for (const execution of this.#hooks.all()) bytes += execution.abandoned ? execution.diskBytes : 0;
    return bytes;
  }

  #reservedBytes(): number {
    let bytes = 0;
    for (const { running, diskBytes } of this.#hooks.all()) {
      if (running) bytes += Math.max(0, this.budget.modestBytes - diskBytes);
    }
    return bytes;
  }

  /** Forgets the one that ended first of those for which everything holds; false when there is none. */
  #forgetOne(...holds: readonly ((execution: Kept) => boolean)[]): boolean {
    let oldest: Kept | null = null;
    for (const execution of this.#hooks.all()) {
      if (oldest !== null && endOf(execution) >= endOf(oldest)) continue;
      if (holds.every((hold) => hold(execution))) oldest = execution;
    }
    if (oldest !== null) this.#hooks.forget(oldest);
    return oldest !== null;
  }
}

const isIdle = ({ idle }: Kept): boolean => idle;
const isAbandoned = ({ abandoned }: Kept): boolean => abandoned;
const takesRoom = ({ diskBytes }: Kept): boolean => diskBytes > 0;

function endOf({ stored }: Kept): number {
  return stored.end?.atUnixMs ?? Number.POSITIVE_INFINITY;
}
