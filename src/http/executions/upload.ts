// A request body as the stdin of an execution: each piece is handed on before the next is read, so a process that does
// not read holds up the client and nothing grows here.
import { limits } from "../../config/limits.ts";
import { AgentError } from "../../errors/agent-error.ts";
import type { ExecutionOperations, StdinInput, StdinStatus } from "../../sandbox/executions/operations.ts";
import type { Target } from "./input.ts";

const NOTHING = new Uint8Array(0);

export interface Upload extends Pick<StdinInput, "offset" | "eof"> {
  readonly body: Request["body"];
  /** Aborts when the client has left. */
  readonly signal: AbortSignal;
}

/**
 * Writes the whole body from `offset` on, then closes when `eof`. Rejects as `writeStdin` does, with `BODY_TOO_SLOW`
 * when the client goes silent, and with `BAD_REQUEST` when it breaks off, which `signal` says while the process does not
 * read; what was taken before stays taken.
 */
export async function uploadStdin(
  operations: ExecutionOperations,
  { caller, sandboxId, executionId }: Target,
  { body, offset, eof, signal }: Upload,
): Promise<StdinStatus> {
  const write = (input: Omit<StdinInput, "signal">): Promise<StdinStatus> =>
    operations.writeStdin(caller, sandboxId, executionId, { ...input, signal });
  let position = offset;
  if (body !== null) {
    const reader = body.getReader();
    try {
      for (let piece = await nextPiece(reader); piece !== null; piece = await nextPiece(reader)) {
        await write({ offset: position, data: piece, eof: false });
        position += piece.length;
      }
    } catch (error) {
      // Of a connection that is gone already, this rejects too.
      reader.cancel().catch(() => {});
      throw error;
    }
  }
  return write({ offset: position, data: NOTHING, eof });
}

async function nextPiece(
  reader: Pick<ReadableStreamDefaultReader<Uint8Array>, "read" | "cancel">,
): Promise<Uint8Array | null> {
  const { promise: silence, reject } = Promise.withResolvers<never>();
  const timer = setTimeout(() => reject(new AgentError("BODY_TOO_SLOW")), limits.connectionIdleSecs * 1000);
  const read = reader.read().catch((cause: unknown) => {
    throw new AgentError("BAD_REQUEST", "the request body was cut off", { cause });
  });
  try {
    const { value, done } = await Promise.race([read, silence]);
    return done ? null : value!;
  } finally {
    clearTimeout(timer);
    // When the silence was first, nobody waits for what the read says later.
    read.catch(() => {});
  }
}
