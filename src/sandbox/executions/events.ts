// Tells of an execution's start and end, in that order, to the event log and to those who follow it. Nobody waits for
// it: an event that cannot be written is logged, and the execution goes on.
import type { JsonObject } from "../../contracts/json.ts";
import type { Context } from "../context.ts";
import type { Sandbox } from "../sandbox.ts";
import { eventRow } from "../transition.ts";
import type { HeldExecution } from "./execution.ts";

export class ExecutionEvents {
  readonly #context: Context;
  readonly #sandbox: Sandbox;
  #told: Promise<void> = Promise.resolve();

  constructor(context: Context, sandbox: Sandbox) {
    this.#context = context;
    this.#sandbox = sandbox;
  }

  started({ id }: HeldExecution): void {
    void this.#tell("exec.started", { execution_id: id });
  }

  /** Resolves when it is told, or cannot be. */
  exited({ id, stored: { end } }: HeldExecution): Promise<void> {
    return this.#tell("exec.exited", {
      execution_id: id,
      exit_code: end?.exitCode ?? null,
      signal: end?.signal ?? null,
      timed_out: end?.timedOut ?? false,
      error: end?.error ?? null,
    });
  }

  #tell(action: string, attributes: JsonObject): Promise<void> {
    const { store, publish, log } = this.#context.dependencies;
    const row = eventRow(this.#context, this.#sandbox.record, action, attributes);
    this.#told = this.#told
      .then(() => store.commit([{ append: "event", row }]))
      .then(() => publish(row))
      .catch((error: unknown) => log.warn({ sandbox: this.#sandbox.id, action, error: String(error) }, "no event"));
    return this.#told;
  }
}
