// An execution on a WebSocket: its frames go out, and stdin, size and signals come in.
import type { Logger } from "../../contracts/log.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import type { ExecutionOperations } from "../../sandbox/executions/operations.ts";
import type { Place } from "../stream/attached.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { FrameSocket } from "../stream/socket.ts";
import type { SocketEncoding } from "../stream/socket-encoding.ts";
import { signalNumber, type Target, writeStdin } from "./input.ts";
import { type ClientMessage, parseMessage } from "./message.ts";
import { stdinReply } from "./reply.ts";

export interface ExecutionSocketOptions {
  readonly operations: ExecutionOperations;
  readonly target: Target;
  readonly encoding: SocketEncoding;
  readonly place: Place;
  readonly log: Logger;
}

/** The socket of an attached reader. */
export function executionSocket(source: FrameSource, options: ExecutionSocketOptions): FrameSocket {
  const { encoding, place, log } = options;
  const answer = (message: string | Uint8Array) => answerMessage(parseMessage(message), options);
  return new FrameSocket(source, { encoding, place, log, answer });
}

/** What could not be done is told and ends nothing. */
async function answerMessage(message: ClientMessage, options: ExecutionSocketOptions): Promise<Frame | null> {
  try {
    return await carryOut(message, options);
  } catch (thrown) {
    const error = asAgentError(thrown);
    if (error.code === "INTERNAL") options.log.error({ err: error.cause ?? error }, `a ${message.type} message failed`);
    const { code, details } = error;
    return { type: "refused", request: message.type, code, message: error.message, details: details as Frame };
  }
}

async function carryOut(message: ClientMessage, { operations, target }: ExecutionSocketOptions): Promise<Frame | null> {
  const { caller, sandboxId, executionId } = target;
  switch (message.type) {
    case "stdin":
      return { type: "stdin", ...stdinReply(await writeStdin(operations, target, message)) };
    case "resize":
      await operations.resizeExecution(caller, sandboxId, executionId, message);
      return null;
    case "signal":
      await operations.signalExecution(caller, sandboxId, executionId, signalNumber(message.signal));
      return null;
  }
}
