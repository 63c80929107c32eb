// The frames of one attached reader: the execution as it was, its output, and exactly one frame that says how it ended.
import { AgentError } from "../../errors/agent-error.ts";
import type {
  AttachRequest,
  Execution,
  ExecutionOperations,
  ExecutionReader,
} from "../../sandbox/executions/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { executionReply, frameReply } from "./reply.ts";

export interface Attachment extends Pick<AttachRequest, "from" | "incarnation" | "role" | "isBorrowing"> {
  readonly caller: Caller;
  readonly execution: Execution;
}

export class ExecutionSource implements FrameSource {
  #started: Execution | null;
  #isOver = false;

  private constructor(
    execution: Execution,
    private readonly reader: ExecutionReader,
    private readonly abort: AbortController,
  ) {
    this.#started = execution;
  }

  /** Attaches a reader. Rejects as `attachExecution` does. */
  static async open(operations: ExecutionOperations, attachment: Attachment): Promise<ExecutionSource> {
    const { caller, execution, ...request } = attachment;
    const abort = new AbortController();
    const reader = await operations.attachExecution(caller, execution.sandboxId, execution.id, {
      ...request,
      signal: abort.signal,
    });
    return new ExecutionSource(execution, reader, abort);
  }

  async next(): Promise<Frame | null> {
    if (this.#started !== null) {
      const execution = executionReply(this.#started);
      this.#started = null;
      return { type: "started", execution };
    }
    if (this.#isOver) return null;
    const frame = await this.reader.next();
    // An end that nobody has seen is never shown as a good one.
    if (frame === null) throw new AgentError("INTERNAL", "the stream broke off");
    this.#isOver = frame.type !== "output";
    return frameReply(frame);
  }

  close(): void {
    this.abort.abort();
  }
}
