// Tells of an execution's start and end, in that order, to the event log and to those who follow it. Nobody waits for
// it: an event that cannot be written is logged, and the execution goes on. The start of one that ends at once is
// written together with its end, which is half the work.
import type { JsonObject } from "../../contracts/json.ts";
import type { EventRow } from "../../state/change.ts";
import { nextTurn } from "../clock.ts";
import type { Context } from "../context.ts";
import type { Sandbox } from "../sandbox.ts";
import { eventRow } from "../transition.ts";
import type { HeldExecution } from "./execution.ts";

const START_DELAY_MS = 5;

export class ExecutionEvents {
  readonly #context: Context;
  readonly #sandbox: Sandbox;
  #told: Promise<void> = Promise.resolve();
  /** Told by the timer, or with the end if that comes first. */
  #start: EventRow | null = null;
  #startTimer: Timer | null = null;

  constructor(context: Context, sandbox: Sandbox) {
    this.#context = context;
    this.#sandbox = sandbox;
  }

  started({ id }: HeldExecution): void {
    this.#start = this.#row("exec.started", { execution_id: id });
    this.#startTimer = setTimeout(() => void this.#tell(this.#takeStart()), START_DELAY_MS);
  }

  /** Resolves when it is told, or cannot be. */
  exited({ id, stored: { end } }: HeldExecution): Promise<void> {
    const row = this.#row("exec.exited", {
      execution_id: id,
      exit_code: end?.exitCode ?? null,
      signal: end?.signal ?? null,
      timed_out: end?.timedOut ?? false,
      error: end?.error ?? null,
    });
    return this.#tell([...this.#takeStart(), row]);
  }

  /** Resolves when everything is told. */
  settled(): Promise<void> {
    return this.#tell(this.#takeStart());
  }

  #row(action: string, attributes: JsonObject): EventRow {
    return eventRow(this.#context, this.#sandbox.record, action, attributes);
  }

  /** The start, where it was not told. */
  #takeStart(): readonly EventRow[] {
    if (this.#startTimer !== null) clearTimeout(this.#startTimer);
    const rows = this.#start === null ? [] : [this.#start];
    this.#start = this.#startTimer = null;
    return rows;
  }

  #tell(rows: readonly EventRow[]): Promise<void> {
    const { store, publish, log } = this.#context.dependencies;
    if (rows.length === 0) return this.#told;
    this.#told = this.#told
      .then(nextTurn)
      .then(() => store.commit(rows.map((row) => ({ append: "event", row }))))
      .then(() => rows.forEach(publish))
      .catch((error: unknown) => log.warn({ sandbox: this.#sandbox.id, error: String(error) }, "no event"));
    return this.#told;
  }
}
