// Executions as the guest agent offers them: commands with an id that outlive connections. Output is two byte streams
// with absolute offsets; the guest keeps what the host has not acknowledged, so a cut connection loses nothing.
import type { Loan } from "./channel.ts";

/** A window of output that is kept, in absolute offsets: the first kept byte, and one past the last. */
export interface OutputWindow {
  readonly base: number;
  readonly end: number;
}

/** Absolute offsets into both outputs. A terminal has one output, which is `stdout`. */
export interface OutputOffsets {
  readonly stdout: number;
  readonly stderr: number;
}

export interface TerminalSize {
  readonly cols: number;
  readonly rows: number;
}

/** An execution as the guest agent knows it. Everything here is the guest's claim. */
export interface GuestExecution {
  readonly id: string;
  /** The guest leaves out what is long. */
  readonly command?: string;
  readonly argv?: readonly string[];
  readonly pid: number;
  readonly tty: boolean;
  readonly startedAtUnixMs: number;
  /** Null while it runs. */
  readonly exitedAtUnixMs: number | null;
  /** Both are null while it runs, and where the guest could not tell how it ended. */
  readonly exitCode: number | null;
  readonly signal: number | null;
  readonly timedOut: boolean;
  readonly oomKilled: boolean;
  /** The process has exited and something that it left behind still holds its output. */
  readonly outputOpen: boolean;
  readonly block: boolean;
  readonly stdout: OutputWindow;
  readonly stderr: OutputWindow;
  readonly stdin: { readonly accepted: number; readonly closed: boolean };
}

export interface ExecutionStart {
  /** 1 to 64 of `A-Z a-z 0-9 _ -`, chosen by the host. */
  readonly id: string;
  readonly command?: string;
  readonly argv?: readonly string[];
  readonly env: Readonly<Record<string, string>>;
  readonly cwd?: string;
  /** Gives the command a controlling terminal of this size. */
  readonly tty?: TerminalSize;
  /** False: the command reads end-of-file at once. A terminal always has input. */
  readonly stdin: boolean;
  /** 0 = no limit. */
  readonly timeoutMs: number;
  /** Bytes of each output that the guest keeps at most. */
  readonly ringMaxBytes: number;
  /** What a full ring of bytes that are not acknowledged does: hold the process up, or lose its oldest bytes. */
  readonly block: boolean;
}

/** Receives what an execution writes. */
export interface ExecutionSink {
  /**
   * `data` is a view of memory that nobody writes again; of memory on loan, as long as it is not given back. Offsets
   * never go backwards; one that jumps says that bytes were lost. The guest may send more once the promise has resolved,
   * which is the back-pressure; small pieces may be answered with the same promise, which resolves when the last of them
   * is taken.
   */
  output(channel: "stdout" | "stderr", offset: number, data: Uint8Array, loan?: Loan): Promise<void>;
  /** The process has ended; output may follow. What it wrote itself lies below `wrote`. */
  exited(state: GuestExecution, wrote: OutputOffsets): void;
}

export interface StdinReply {
  /** Bytes of input taken so far. */
  readonly accepted: number;
  readonly closed: boolean;
  /** The offset lies beyond `accepted`, and nothing was taken. */
  readonly gap: boolean;
}

/** Every method rejects with an `AgentError`: `EXECUTION_…`, `SANDBOX_BUSY`, `BAD_REQUEST`, `GUEST_…`. */
export interface GuestExecutions {
  /** A known id with the same command answers that execution; with another command it is `EXECUTION_EXISTS`. */
  start(request: ExecutionStart): Promise<{ readonly execution: GuestExecution; readonly existing: boolean }>;
  /**
   * Sends output from the offsets on. Resolves when the process has exited and everything was sent; rejects with
   * `GUEST_UNREACHABLE` when the connection breaks or `signal` aborts. The newest attach of an execution wins.
   */
  attach(id: string, from: OutputOffsets, sink: ExecutionSink, signal: AbortSignal): Promise<GuestExecution>;
  /** Output below the offsets is safe and may go. */
  acknowledge(id: string, offsets: OutputOffsets): Promise<void>;
  setBlock(id: string, block: boolean): Promise<void>;
  /**
   * At most 256 KiB. Resolves when the bytes were taken; what lies below the bytes already taken is dropped. When `signal`
   * aborts it rejects with `GUEST_UNREACHABLE`, and how much was taken is not known.
   */
  writeStdin(id: string, offset: number, data: Uint8Array, eof: boolean, signal?: AbortSignal): Promise<StdinReply>;
  /** To the process group; 1 to 64. */
  signal(id: string, signal: number): Promise<void>;
  resize(id: string, size: TerminalSize): Promise<void>;
  list(): Promise<readonly GuestExecution[]>;
  /** Drops an execution that has exited. */
  forget(id: string): Promise<void>;
}
