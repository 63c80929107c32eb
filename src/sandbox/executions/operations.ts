// What can be asked of executions: commands with an id that outlive connections and the agent itself.
import type { OutputOffsets, TerminalSize } from "../../contracts/executions.ts";
import type { ErrorCode } from "../../errors/catalogue.ts";
import type { Caller, ProcessRequest } from "../operations.ts";

export interface StartExecutionRequest extends ProcessRequest {
  /** 1 to 64 of `A-Z a-z 0-9 _ -`; the agent chooses one where it is absent. */
  readonly id?: string;
  /** Only the sandbox's own user can run anything: another is refused. */
  readonly user?: string;
  readonly tty?: TerminalSize;
  /** Absent = false. A terminal always has input. */
  readonly stdin?: boolean;
  /** What a full ring does: `ring` (default) loses the oldest bytes, `block` holds the process up for the starter. */
  readonly overflow?: "ring" | "block";
  /** What the loss of the starter's stream does; absent = `keep`. */
  readonly onDisconnect?: "keep" | "kill";
}

/** One command with an id. Times are Unix milliseconds, lengths and offsets are bytes since its start. */
export interface Execution {
  readonly id: string;
  readonly sandboxId: string;
  /** Raised with every return of the sandbox to an earlier state. Offsets mean something within one. */
  readonly incarnation: number;
  /** Exactly one of `command` and `argv` is set. */
  readonly command?: string;
  readonly argv?: readonly string[];
  readonly tty: boolean;
  readonly status: "running" | "exited";
  readonly startedAtUnixMs: number;
  readonly exitedAtUnixMs: number | null;
  readonly exitCode: number | null;
  readonly signal: number | null;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  /** The process has exited and something that it left behind still holds its output. */
  readonly outputOpen: boolean;
  /** Why it is over without an exit that anybody saw, for example `sandbox stopped`. */
  readonly error: string | null;
  readonly stdoutLength: number;
  readonly stderrLength: number;
  readonly stdin: StdinStatus;
}

export interface StdinStatus {
  /** Bytes taken so far, which is the offset at which to go on. */
  readonly bytesWritten: number;
  readonly closed: boolean;
}

/** Bytes for the input of a process. */
export interface StdinInput {
  readonly offset: number;
  readonly data: Uint8Array;
  /** The input ends behind the bytes. */
  readonly eof: boolean;
  /** Nobody waits for the answer any more. */
  readonly signal?: AbortSignal;
}

export interface ExecutionExit {
  readonly exitCode: number | null;
  readonly signal: number | null;
  readonly timedOut: boolean;
  readonly outputOpen: boolean;
}

/** What a reader gets. `output` with a jump in `offset` says that bytes were lost; `exited` and `error` are the last. */
export type ExecutionFrame =
  | {
      readonly type: "output";
      readonly channel: "stdout" | "stderr" | "pty";
      readonly offset: number;
      readonly data: Uint8Array;
    }
  | ({ readonly type: "exited" } & ExecutionExit)
  | { readonly type: "error"; readonly code: ErrorCode; readonly message: string };

export interface AttachRequest {
  /** Where to begin; what is not kept any more is passed over. */
  readonly from: OutputOffsets;
  /** The incarnation that the offsets are of; absent = whichever there is. */
  readonly incarnation?: number;
  /**
   * `starter`: its pace holds a `block` execution up, and its loss is what `onDisconnect` speaks of; the newest one has
   * the role. `reader`: sees the same bytes and never holds anybody up.
   */
  readonly role: "starter" | "reader";
  /** Ends the reader. */
  readonly signal: AbortSignal;
  /** The reader does not look at the `data` of a frame any more when it asks for the next one. */
  readonly isBorrowing?: boolean;
}

/** One attached reader. Nothing is queued for it: what it does not ask for stays in the ring. */
export interface ExecutionReader {
  /**
   * The next frame; null after the last one and once the signal has aborted. Exactly one `exited` or `error` comes, and
   * it comes last. One call at a time. `data` must not be written to.
   */
  next(): Promise<ExecutionFrame | null>;
}

/** Every method rejects with `AgentError`; unknown executions are `EXECUTION_NOT_FOUND`. */
export interface ExecutionOperations {
  /** `existing`: an execution with this id and the same command was there. */
  startExecution(
    caller: Caller,
    id: string,
    request: StartExecutionRequest,
  ): Promise<{ readonly execution: Execution; readonly existing: boolean }>;
  /** By start, then id. */
  executions(caller: Caller, id: string): Promise<readonly Execution[]>;
  execution(caller: Caller, id: string, executionId: string): Promise<Execution>;
  /** Resolves at the exit or after `timeoutMs`, with the execution as it is then; 0 asks without waiting. */
  waitExecution(caller: Caller, id: string, executionId: string, timeoutMs: number): Promise<Execution>;
  attachExecution(caller: Caller, id: string, executionId: string, request: AttachRequest): Promise<ExecutionReader>;
  /**
   * Resolves when the guest has taken the bytes, however many there are. Bytes below what was taken before are dropped;
   * `STDIN_GAP` with `details.accepted` when `offset` lies beyond it; `STDIN_CLOSED` for new bytes after the end. When the
   * signal aborts, what was taken stays taken.
   */
  writeStdin(caller: Caller, id: string, executionId: string, input: StdinInput): Promise<StdinStatus>;
  /** `signal` 1 to 64, to the process group. */
  signalExecution(caller: Caller, id: string, executionId: string, signal: number): Promise<Execution>;
  resizeExecution(caller: Caller, id: string, executionId: string, size: TerminalSize): Promise<Execution>;
}
