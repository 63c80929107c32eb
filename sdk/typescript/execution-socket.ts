// An execution over one WebSocket, for people who type: output, input, size and signals share a connection. When it breaks
// it is made again, where the output was and where the input was taken.
import { Packr } from "msgpackr";
import { ApiError, UnreachableError } from "./errors.ts";
import { Execution, type AttachOptions } from "./execution.ts";
import { endOf, type ExitedFrame, type Frame, type OutputFrame, SILENCE_MS, unpackFrame } from "./frames.ts";
import { isPassing, Patience, Pause, retried } from "./retry.ts";
import { SocketInput } from "./socket-input.ts";
import { segment, type Transport } from "./transport.ts";

type Received =
  | Frame
  | { readonly type: "stdin"; readonly bytes_written: number; readonly closed: boolean }
  | {
      readonly type: "refused";
      readonly request: string;
      readonly code: string;
      readonly message: string;
      readonly details?: Readonly<Record<string, unknown>>;
    };

const PROTOCOL = "fluxvm.stream.msgpack";
/** A WebSocket cannot be told to wait: with so much unread it is given up until the reader has caught up. */
const UNREAD_MAX_BYTES = 8 * 1024 * 1024;
/** How long the far side may take to agree that a connection is over. */
const GOODBYE_MS = 1_000;
const packer = new Packr({ useRecords: false });

export class ExecutionSocket {
  readonly #execution: Execution;
  readonly #url: string;
  readonly #offsets: { stdout: number; stderr: number };
  readonly #input: SocketInput;
  readonly #left = new AbortController();
  #size: { readonly cols: number; readonly rows: number } | null = null;
  #signals: (string | number)[] = [];
  #socket: WebSocket | null = null;
  #unread: (OutputFrame | ExitedFrame)[] = [];
  #unreadBytes = 0;
  /** What the offsets are of; null before the first connection. */
  #incarnation: number | null = null;
  #failure: unknown = null;
  /** Resolved at the next change of what is unread. */
  #changed = signalled();

  /** Nothing is asked before the frames are read. */
  constructor(
    private readonly transport: Transport,
    sandboxId: string,
    id: string,
    private readonly options: AttachOptions = {},
  ) {
    this.#execution = Execution.of(transport, sandboxId, id, options);
    const path = `/v1/sandboxes/${segment(sandboxId)}/executions/${segment(id)}/ws`;
    this.#url = transport.socketUrl(path);
    this.#offsets = { stdout: options.stdoutOffset ?? 0, stderr: options.stderrOffset ?? 0 };
    this.#input = new SocketInput((message) => this.#send(message));
    options.signal?.addEventListener("abort", () => this.close(), { once: true });
  }

  /**
   * The output, then the exit, which is the last frame. To be used once; what is written goes out while it is read. Throws
   * `ApiError` when the end was not seen, `UnreachableError` when the agent stayed away. Leaving the loop closes.
   */
  async *frames(): AsyncGenerator<OutputFrame | ExitedFrame, void, void> {
    const connected = this.#stayConnected().catch((error: unknown) => this.#fail(error));
    try {
      for (;;) {
        const frame = this.#unread.shift();
        if (frame !== undefined) {
          if (frame.type === "output") this.#unreadBytes -= frame.data.length;
          this.#change();
          yield frame;
          if (frame.type === "exited") return;
        } else if (this.#failure !== null) {
          throw this.#failure;
        } else if (this.#left.signal.aborted) {
          return;
        } else {
          await this.#changed.promise;
        }
      }
    } finally {
      this.close();
      await connected;
    }
  }

  /** Sends bytes to stdin; resolves when they were taken. Rejects with `ApiError`: `EXECUTION_EXITED`, `STDIN_CLOSED`. */
  write(bytes: Uint8Array, eof = false): Promise<void> {
    return this.#input.write(bytes, eof);
  }

  /** Changes the size of the terminal, now or when there is a connection again. */
  resize(cols: number, rows: number): void {
    this.#size = { cols, rows };
    this.#send({ type: "resize", cols, rows });
  }

  /** Sends a signal by number or name to the process group, now or when there is a connection again. */
  signal(signal: string | number): void {
    if (!this.#send({ type: "signal", signal })) this.#signals.push(signal);
  }

  /** The execution goes on. */
  close(): void {
    if (this.#socket !== null) leave(this.#socket);
    this.#left.abort();
    this.#input.fail(new UnreachableError("the connection was closed"));
    this.#change();
  }

  async #stayConnected(): Promise<void> {
    const signal = this.#left.signal;
    const pause = new Pause(signal);
    const patience = new Patience(this.options.resumeMs);
    const { bytes_written } = await this.#execution.stdin();
    this.#input.begin(bytes_written);
    while (!signal.aborted && !this.#isOver()) {
      // What is wrong with it, an upgrade cannot say.
      const { incarnation } = await retried({ ...this.options, signal }, () => this.#execution.state());
      this.#incarnation ??= incarnation;
      if (incarnation !== this.#incarnation) {
        return this.#fail(new ApiError(0, "REVERTED", "the sandbox was put back to an earlier state"));
      }
      const before = this.#received;
      const hasLived = await this.#connection();
      if (this.#isOver()) return;
      patience.count(hasLived);
      if (this.#received > before) pause.reset();
      while (this.#unreadBytes >= UNREAD_MAX_BYTES / 2 && !signal.aborted) await this.#changed.promise;
      await pause.wait();
    }
  }

  get #received(): number {
    return this.#offsets.stdout + this.#offsets.stderr;
  }

  #isOver(): boolean {
    return this.#failure !== null || this.#unread.at(-1)?.type === "exited";
  }

  /** Resolves when a connection is over; with whether it has brought anything. */
  #connection(): Promise<boolean> {
    const { stdout, stderr } = this.#offsets;
    const role = this.options.role ?? "reader";
    const query = `stdout_offset=${stdout}&stderr_offset=${stderr}&incarnation=${this.#incarnation}&role=${role}`;
    const socket = this.transport.openSocket(`${this.#url}?${query}`, PROTOCOL);
    socket.binaryType = "arraybuffer";
    this.#socket = socket;
    let hasLived = false;
    return new Promise((resolve) => {
      let silence: ReturnType<typeof setTimeout> | undefined;
      const over = (): void => {
        clearTimeout(silence);
        this.#left.signal.removeEventListener("abort", over);
        this.#socket = null;
        resolve(hasLived);
      };
      // Nobody waits for the end of one that says nothing: it may never say that either.
      const heard = (): void => {
        clearTimeout(silence);
        silence = setTimeout(() => {
          leave(socket);
          over();
        }, SILENCE_MS);
      };
      this.#left.signal.addEventListener("abort", over, { once: true });
      socket.addEventListener("open", () => {
        heard();
        if (this.#size !== null) this.#send({ type: "resize", ...this.#size });
        for (const signal of this.#signals.splice(0)) this.#send({ type: "signal", signal });
        this.#input.sendAgain();
      });
      socket.addEventListener("message", ({ data }) => {
        heard();
        hasLived = true;
        // What comes after it was given up is asked for again.
        if (this.#socket === socket) this.#heard(data);
      });
      socket.addEventListener("close", over);
      socket.addEventListener("error", () => socket.close());
      heard();
    });
  }

  #heard(data: unknown): void {
    try {
      // Text is no frame, and reads as none.
      this.#receive(unpackFrame(data instanceof ArrayBuffer ? new Uint8Array(data) : new Uint8Array(0)));
    } catch (error) {
      this.#fail(error);
      this.#socket?.close();
    }
  }

  #receive(frame: Received): void {
    switch (frame.type) {
      case "output": {
        const channel = frame.channel === "stderr" ? "stderr" : "stdout";
        this.#offsets[channel] = endOf(frame, this.#offsets[channel]);
        this.#unreadBytes += frame.data.length;
        this.#unread.push(frame);
        if (this.#unreadBytes > UNREAD_MAX_BYTES) {
          this.#socket?.close();
          this.#socket = null;
        }
        return this.#change();
      }
      case "exited":
        this.#unread.push(frame);
        this.#input.fail(new ApiError(0, "EXECUTION_EXITED", "the execution has exited"));
        return this.#change();
      case "stdin":
        return this.#input.taken(frame.bytes_written);
      case "refused":
        if (frame.request === "stdin") {
          const error = new ApiError(0, frame.code, frame.message, frame.details);
          // With an agent that goes away the connection does too, and then it is sent again.
          if (!isPassing(error)) this.#input.refused(error);
        }
        return;
      case "error": {
        const error = new ApiError(0, frame.code, frame.message);
        // The connection ends with it, and is made again.
        if (!isPassing(error)) this.#fail(error);
      }
    }
  }

  #fail(error: unknown): void {
    this.#failure ??= error;
    this.#input.fail(error);
    this.#change();
  }

  #change(): void {
    this.#changed.resolve();
    this.#changed = signalled();
  }

  /** False without a connection. */
  #send(message: object): boolean {
    if (this.#socket === null || this.#socket.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(packer.pack(message) as Uint8Array<ArrayBuffer>);
    return true;
  }
}

/** Closes, and cuts what does not answer to that where it can be cut. */
function leave(socket: WebSocket): void {
  const { terminate } = socket as { terminate?: () => void };
  socket.close();
  if (terminate === undefined) return;
  const timer = setTimeout(() => terminate.call(socket), GOODBYE_MS);
  socket.addEventListener("close", () => clearTimeout(timer));
}

function signalled(): { readonly promise: Promise<void>; readonly resolve: () => void } {
  let resolve = (): void => {};
  const promise = new Promise<void>((settle) => {
    resolve = settle;
  });
  return { promise, resolve };
}
