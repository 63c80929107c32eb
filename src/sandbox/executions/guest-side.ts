// The guest of a sandbox as its executions use it: found anew for each call, and asked again where an answer was lost.
import { limits } from "../../config/limits.ts";
import type { ExecutionStart, GuestExecution, GuestExecutions } from "../../contracts/executions.ts";
import { AgentError, asAgentError } from "../../errors/agent-error.ts";
import { withDeadline } from "../../errors/deadline.ts";
import type { Context } from "../context.ts";
import type { Sandbox } from "../sandbox.ts";

export class GuestSide {
  readonly #context: Context;
  readonly #sandbox: Sandbox;

  constructor(context: Context, sandbox: Sandbox) {
    this.#context = context;
    this.#sandbox = sandbox;
  }

  /** The guest's executions. Rejects with what says why there are none. */
  async executions(): Promise<GuestExecutions> {
    const { live } = this.#sandbox;
    if (live === null) throw new AgentError("SANDBOX_GONE");
    const { executions } = await live.instance.channel();
    if (executions === undefined) throw new AgentError("NOT_SUPPORTED", "this guest agent cannot keep executions");
    return executions;
  }

  /** A start whose answer was lost is sent again: the guest knows it by its id. */
  async start(request: ExecutionStart): Promise<GuestExecution> {
    for (let attempt = 1; ; attempt++) {
      try {
        const guest = await this.executions();
        return (await guest.start(request)).execution;
      } catch (cause) {
        const error = asAgentError(cause);
        if (error.code !== "GUEST_UNREACHABLE" || attempt === limits.executionStartAttemptsMax) throw error;
        await Bun.sleep(limits.executionAttachPauseMinMs * attempt);
      }
    }
  }

  /** What the guest knows, by id; null when it could not be asked. */
  async known(): Promise<ReadonlyMap<string, GuestExecution> | null> {
    try {
      const asking = this.executions().then((guest) => guest.list());
      const states = await withDeadline(asking, limits.adoptTimeoutMs, "asking for executions");
      return new Map(states.map((state) => [state.id, state]));
    } catch (cause) {
      const error = asAgentError(cause);
      if (error.code === "NOT_SUPPORTED") return new Map();
      this.#context.dependencies.log.warn({ sandbox: this.#sandbox.id, error: error.message }, "executions not listed");
      return null;
    }
  }

  /** Tells the guest to forget one that has ended. */
  forget(id: string): void {
    // What does not arrive is said again by the next agent process, or by the guest's own bound.
    this.executions()
      .then((guest) => guest.forget(id))
      .catch(() => undefined);
  }
}
