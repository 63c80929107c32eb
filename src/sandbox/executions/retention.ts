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
  /** Drops one that is idle from the table, which calls `left`, and gives its room back in this call. */
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
  /** Those that are over, by their ends. */
  readonly #over: Kept[] = [];
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

  /** An execution is over: once nobody comes back to it, it counts as what is only kept. */
  ended(execution: Kept): void {
    const before = this.#over.findLastIndex((other) => endOf(other) <= endOf(execution));
    this.#over.splice(before + 1, 0, execution);
    this.#trimLater();
  }

  /** An execution is not kept any more. */
  left(execution: Kept): void {
    const at = this.#over.indexOf(execution);
    if (at >= 0) this.#over.splice(at, 1);
  }

  close(): void {
    this.#closed = true;
    if (this.#trimTimer !== null) clearTimeout(this.#trimTimer);
    this.#trimTimer = null;
  }

  #trimLater(): void {
    if (this.#closed) return;
    this.#trimTimer ??= setTimeout(() => this.#trim(), this.#graceMs).unref();
  }

  #trim(): void {
    this.#trimTimer = null;
    while (this.#abandonedBytes() > limits.executionRingsKeptMaxBytes && this.#forgetOne(isAbandoned, takesRoom));
    if (this.#over.some(({ idle, abandoned }) => idle && !abandoned)) this.#trimLater();
  }

  #abandonedBytes(): number {
    let bytes = 0;
    for (const execution of this.#over) bytes += execution.abandoned ? execution.diskBytes : 0;
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
    const oldest = this.#over.find((execution) => holds.every((hold) => hold(execution)));
    if (oldest !== undefined) this.#hooks.forget(oldest);
    return oldest !== undefined;
  }
}

const isIdle = ({ idle }: Kept): boolean => idle;
const isAbandoned = ({ abandoned }: Kept): boolean => abandoned;
const takesRoom = ({ diskBytes }: Kept): boolean => diskBytes > 0;

function endOf({ stored }: Kept): number {
  return stored.end?.atUnixMs ?? Number.POSITIVE_INFINITY;
}
