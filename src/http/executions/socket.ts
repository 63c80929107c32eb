// An execution on a WebSocket: its frames go out, and stdin, size and signals come in.
import type { Logger } from "../../contracts/log.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import type { ExecutionOperations } from "../../sandbox/executions/operations.ts";
import type { Place } from "../stream/attached.ts";
import type { Frame, FrameSource } from "../stream/frame.ts";
import { FrameSocket } from "../stream/socket.ts";
import type { SocketEncoding } from "../stream/socket-encoding.ts";
import { signalNumber, type Target } from "./input.ts";
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
  const over = new AbortController();
  const answer = (message: string | Uint8Array) => answerMessage(parseMessage(message), options, over.signal);
  const untilClosed: FrameSource = {
    next: () => source.next(),
    close: () => {
      source.close();
      // What waits for the process to read waits for nobody any more.
      over.abort();
    },
  };
  return new FrameSocket(untilClosed, { encoding, place, log, answer });
}

/** What could not be done is told and ends nothing. */
async function answerMessage(
  message: ClientMessage,
  options: ExecutionSocketOptions,
  signal: AbortSignal,
): Promise<Frame | null> {
  try {
    return await carryOut(message, options, signal);
  } catch (thrown) {
    const error = asAgentError(thrown);
    if (error.code === "INTERNAL") options.log.error({ err: error.cause ?? error }, `a ${message.type} message failed`);
    const { code, details } = error;
    return { type: "refused", request: message.type, code, message: error.message, details: details as Frame };
  }
}

async function carryOut(
  message: ClientMessage,
  { operations, target }: ExecutionSocketOptions,
  signal: AbortSignal,
): Promise<Frame | null> {
  const { caller, sandboxId, executionId } = target;
  switch (message.type) {
    case "stdin": {
      const { offset, data, eof } = message;
      const input = { offset, data, eof, signal };
      return { type: "stdin", ...stdinReply(await operations.writeStdin(caller, sandboxId, executionId, input)) };
    }
    case "resize":
      await operations.resizeExecution(caller, sandboxId, executionId, message);
      return null;
    case "signal":
      await operations.signalExecution(caller, sandboxId, executionId, signalNumber(message.signal));
      return null;
  }
}
