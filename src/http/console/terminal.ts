// A login shell on a WebSocket: binary messages are keystrokes, a text message with a size changes the terminal, and what
// the shell writes comes as binary messages. It ends with the socket.
import type { Logger } from "../../contracts/log.ts";
import type { TerminalSize } from "../../contracts/executions.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import type { ExecutionOperations } from "../../sandbox/executions/operations.ts";
import type { Caller } from "../../sandbox/operations.ts";
import type { Target } from "../executions/input.ts";
import { ExecutionSource } from "../executions/source.ts";
import type { Place } from "../stream/attached.ts";
import type { FrameSource } from "../stream/frame.ts";
import { FrameSocket, MessageError } from "../stream/socket.ts";
import { rawEncoding } from "../stream/socket-encoding.ts";

/** A guest may be without bash. */
const SHELL = "command -v bash >/dev/null 2>&1 && exec bash -l; exec /bin/sh -l";
const TERMINAL = "xterm-256color";
const HANG_UP = 1;
const CELLS_MAX = 65_535;

export interface ConsoleOptions {
  readonly operations: ExecutionOperations;
  readonly caller: Caller;
  readonly sandboxId: string;
  readonly size: TerminalSize;
  readonly place: Place;
  readonly log: Logger;
}

/** Starts the shell. Rejects as `startExecution` does, before there is any socket. */
export async function openConsole(options: ConsoleOptions): Promise<FrameSocket> {
  const { operations, caller, sandboxId, size, place, log } = options;
  const request = { command: SHELL, env: { TERM: TERMINAL }, tty: size, stdin: true } as const;
  const { execution } = await operations.startExecution(caller, sandboxId, {
    ...request,
    overflow: "block",
    onDisconnect: "kill",
  });
  const keys = new Keys(operations, { caller, sandboxId, executionId: execution.id });
  const from = { stdout: 0, stderr: 0 };
  try {
    const source = await ExecutionSource.open(operations, { caller, execution, from, role: "starter" });
    return new FrameSocket(untilClosed(source, keys), {
      encoding: rawEncoding,
      place,
      log,
      answer: (message) => keys.take(message),
    });
  } catch (error) {
    keys.hangUp();
    throw error;
  }
}

/** What is written, without the frames that only say something about it. */
function untilClosed(source: FrameSource, keys: Keys): FrameSource {
  return {
    next: async () => {
      for (let frame = await source.next(); frame !== null; frame = await source.next()) {
        if (frame.type !== "started") return frame;
      }
      return null;
    },
    close: () => {
      source.close();
      keys.hangUp();
    },
  };
}

/** What comes from the client. */
class Keys {
  readonly #over = new AbortController();
  #offset = 0;

  constructor(
    private readonly operations: ExecutionOperations,
    private readonly target: Target,
  ) {}

  async take(message: string | Uint8Array): Promise<null> {
    try {
      if (typeof message === "string") await this.#resize(message);
      else await this.#write(message);
    } catch (thrown) {
      const error = asAgentError(thrown);
      // How the shell ended comes from the other side.
      if (error.code !== "EXECUTION_EXITED") throw new MessageError(error.message);
    }
    return null;
  }

  /** A shell hangs up as when its terminal is closed; one that does not mind is killed when nobody comes back to it. */
  hangUp(): void {
    this.#over.abort();
    const { caller, sandboxId, executionId } = this.target;
    this.operations.signalExecution(caller, sandboxId, executionId, HANG_UP).catch(() => {
      // It has ended already.
    });
  }

  async #write(data: Uint8Array): Promise<void> {
    const { caller, sandboxId, executionId } = this.target;
    const input = { offset: this.#offset, data, eof: false, signal: this.#over.signal };
    this.#offset = (await this.operations.writeStdin(caller, sandboxId, executionId, input)).bytesWritten;
  }

  /** A text that is no size says nothing. */
  async #resize(text: string): Promise<void> {
    const size = parseSize(text);
    const { caller, sandboxId, executionId } = this.target;
    if (size !== null) await this.operations.resizeExecution(caller, sandboxId, executionId, size);
  }
}

function parseSize(text: string): TerminalSize | null {
  try {
    const { cols, rows } = JSON.parse(text) as Record<string, unknown>;
    return isCells(cols) && isCells(rows) ? { cols, rows } : null;
  } catch {
    return null;
  }
}

function isCells(value: unknown): value is number {
  return typeof value === "number" && Number.isInteger(value) && value >= 1 && value <= CELLS_MAX;
}
