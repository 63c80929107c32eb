// Executions of a guest in memory, with rings, acknowledgements, credit and input as the guest agent has them. A test
// plays the process: it writes, reads what was sent to it, and exits. Outlives cores, as a guest does.
import { AgentError } from "../../errors/agent-error.ts";
import type {
  ExecutionSink,
  ExecutionStart,
  GuestExecution,
  GuestExecutions,
  OutputOffsets,
  StdinReply,
  TerminalSize,
} from "../../contracts/executions.ts";

const CREDIT_BYTES = 1024 * 1024;
const FRAME_BYTES = 64 * 1024;
const STDIN_PIECE_BYTES = 256 * 1024;
const CHANNELS = ["stdout", "stderr"] as const;

/** Bytes that are not acknowledged, at absolute offsets. */
class FakeRing {
  base = 0;
  end = 0;
  /** Pieces from the first byte that is kept. */
  #pieces: Uint8Array[] = [];

  get length(): number {
    return this.end - this.base;
  }

  push(bytes: Uint8Array): void {
    this.#pieces.push(bytes);
    this.end += bytes.length;
  }

  dropBelow(offset: number): void {
    while (this.base < Math.min(offset, this.end)) {
      const first = this.#pieces.shift() ?? new Uint8Array();
      const count = Math.min(first.length, offset - this.base);
      if (count < first.length) this.#pieces.unshift(first.subarray(count));
      this.base += count;
    }
  }

  /** Some of the bytes from the offset on; none at the end. */
  slice(offset: number, maxBytes: number): Uint8Array {
    let at = this.base;
    for (const piece of this.#pieces) {
      if (offset < at + piece.length) return piece.slice(offset - at, offset - at + maxBytes);
      at += piece.length;
    }
    return new Uint8Array();
  }
}

interface Attached {
  readonly at: { stdout: number; stderr: number };
  readonly sink: ExecutionSink;
  credit: number;
  toldExit: boolean;
  fail(error: AgentError): void;
  end(state: GuestExecution): void;
}

/** One command, as its process and as the guest agent see it. */
export class FakeExecution {
  readonly stdout = new FakeRing();
  readonly stderr = new FakeRing();
  readonly signals: number[] = [];
  input = "";
  size: TerminalSize | undefined;
  block: boolean;
  inputClosed: boolean;
  /** Awaited before input is taken: a process that does not read. */
  inputGate: Promise<void> = Promise.resolve();
  attachments = 0;
  #attached: Attached | null = null;
  #outputOpen = true;
  #wrote: OutputOffsets = { stdout: 0, stderr: 0 };
  #exit: { readonly exitCode: number | null; readonly signal: number | null } | null = null;
  #changed = Promise.withResolvers<void>();

  constructor(readonly request: ExecutionStart) {
    this.block = request.block;
    this.inputClosed = !request.stdin;
    this.size = request.tty;
  }

  /** Writes as the process would: waits while it is held up. */
  async write(channel: "stdout" | "stderr", data: Uint8Array | string): Promise<void> {
    const bytes = typeof data === "string" ? Buffer.from(data) : data;
    for (let at = 0; at < bytes.length;) {
      const ring = this[channel];
      const room = this.request.ringMaxBytes - ring.length;
      if (room === 0 && this.block) {
        await this.#changed.promise;
        continue;
      }
      const piece = bytes.subarray(at, at + Math.min(FRAME_BYTES, this.block ? room : FRAME_BYTES));
      ring.push(piece);
      at += piece.length;
      if (!this.block) ring.dropBelow(ring.end - this.request.ringMaxBytes);
      this.#moved();
      await Promise.resolve();
    }
  }

  /**
   * The process ends. `open`: something that it left behind still holds its output, until `closeOutput`; `unread`: bytes
   * of its stdout that the guest has yet to read, and that the test writes later.
   */
  exit(
    exitCode: number | null,
    { signal = null, open = false, unread = 0 }: { signal?: number | null; open?: boolean; unread?: number } = {},
  ): void {
    this.#exit = { exitCode, signal };
    this.#wrote = { stdout: this.stdout.end + unread, stderr: this.stderr.end };
    this.inputClosed = true;
    if (!open) this.#outputOpen = false;
    this.#moved();
  }

  closeOutput(): void {
    this.#outputOpen = false;
    this.#moved();
  }

  get exited(): boolean {
    return this.#exit !== null;
  }

  state(): GuestExecution {
    const { id, command, argv, tty } = this.request;
    const exit = this.#exit;
    return {
      id,
      ...(command !== undefined && { command }),
      ...(argv !== undefined && { argv }),
      pid: 7,
      tty: tty !== undefined,
      startedAtUnixMs: 1,
      exitedAtUnixMs: exit === null ? null : 2,
      exitCode: exit?.exitCode ?? null,
      signal: exit?.signal ?? null,
      timedOut: false,
      oomKilled: false,
      outputOpen: exit !== null && this.#outputOpen,
      block: this.block,
      stdout: { base: this.stdout.base, end: this.stdout.end },
      stderr: { base: this.stderr.base, end: this.stderr.end },
      stdin: { accepted: Buffer.byteLength(this.input), closed: this.inputClosed },
    };
  }

  attach(from: OutputOffsets, sink: ExecutionSink, signal: AbortSignal): Promise<GuestExecution> {
    const { promise, resolve, reject } = Promise.withResolvers<GuestExecution>();
    this.attachments += 1;
    this.#attached?.fail(new AgentError("GUEST_ERROR", "guest agent error: SUPERSEDED"));
    const over = (): void => {
      if (this.#attached === attached) this.#attached = null;
    };
    const attached: Attached = {
      at: { ...from },
      sink,
      credit: CREDIT_BYTES,
      toldExit: false,
      fail: (error) => {
        over();
        reject(error);
      },
      end: (state) => {
        over();
        resolve(state);
      },
    };
    this.#attached = attached;
    signal.addEventListener("abort", () => attached.fail(new AgentError("GUEST_UNREACHABLE")), { once: true });
    this.#send();
    return promise;
  }

  /** Breaks the connection under whoever is attached. */
  cut(): void {
    this.#attached?.fail(new AgentError("GUEST_UNREACHABLE"));
  }

  acknowledge({ stdout, stderr }: OutputOffsets): void {
    this.stdout.dropBelow(stdout);
    this.stderr.dropBelow(stderr);
    this.#moved();
  }

  setBlock(block: boolean): void {
    this.block = block;
    this.#moved();
  }

  #moved(): void {
    this.#changed.resolve();
    this.#changed = Promise.withResolvers();
    this.#send();
  }

  #send(): void {
    const attached = this.#attached;
    if (attached === null) return;
    if (this.#exit !== null && !attached.toldExit) {
      attached.toldExit = true;
      attached.sink.exited(this.state(), this.#wrote);
    }
    for (const channel of CHANNELS) {
      const ring = this[channel];
      for (;;) {
        const offset = Math.max(attached.at[channel], ring.base);
        const data = ring.slice(offset, Math.min(FRAME_BYTES, attached.credit));
        if (data.length === 0) break;
        attached.at[channel] = offset + data.length;
        attached.credit -= data.length;
        void attached.sink.output(channel, offset, data).then(() => {
          attached.credit += data.length;
          if (this.#attached === attached) this.#send();
        });
      }
    }
    const sent = CHANNELS.every((channel) => Math.max(attached.at[channel], this[channel].base) >= this[channel].end);
    if (sent && this.#exit !== null && !this.#outputOpen) attached.end(this.state());
  }
}

export class FakeExecutions implements GuestExecutions {
  readonly all = new Map<string, FakeExecution>();
  /** Thrown by the next start, after the process was started when `afterStart`. */
  startFault: { readonly error: AgentError; readonly afterStart: boolean } | null = null;
  /** Awaited by every start. */
  startGate: Promise<void> = Promise.resolve();
  starts = 0;
  losesAcknowledgements = false;
  #thaw: PromiseWithResolvers<void> | null = null;

  freeze(): void {
    this.#thaw ??= Promise.withResolvers();
  }

  thaw(): void {
    this.#thaw?.resolve();
    this.#thaw = null;
  }

  /** The execution, which must be there. */
  get(id: string): FakeExecution {
    const execution = this.all.get(id);
    if (execution === undefined) throw new AgentError("EXECUTION_NOT_FOUND");
    return execution;
  }

  /** Breaks every connection. */
  cutAll(): void {
    for (const execution of this.all.values()) execution.cut();
  }

  async start(request: ExecutionStart): Promise<{ execution: GuestExecution; existing: boolean }> {
    const fault = this.startFault;
    this.startFault = null;
    await this.startGate;
    if (fault !== null && !fault.afterStart) throw fault.error;
    const known = this.all.get(request.id);
    if (known === undefined) {
      this.starts += 1;
      this.all.set(request.id, new FakeExecution(request));
    }
    if (fault !== null) throw fault.error;
    return { execution: this.get(request.id).state(), existing: known !== undefined };
  }

  async attach(id: string, from: OutputOffsets, sink: ExecutionSink, signal: AbortSignal): Promise<GuestExecution> {
    return await this.get(id).attach(from, sink, signal);
  }

  async acknowledge(id: string, offsets: OutputOffsets): Promise<void> {
    if (this.losesAcknowledgements) throw new AgentError("GUEST_UNREACHABLE");
    this.get(id).acknowledge(offsets);
  }

  async setBlock(id: string, block: boolean): Promise<void> {
    this.get(id).setBlock(block);
  }

  async writeStdin(
    id: string,
    offset: number,
    data: Uint8Array,
    eof: boolean,
    signal?: AbortSignal,
  ): Promise<StdinReply> {
    const execution = this.get(id);
    if (data.length > STDIN_PIECE_BYTES) throw new AgentError("BAD_REQUEST", "a piece that is too large");
    if (data.length > 0) {
      const { promise: given, reject } = Promise.withResolvers<never>();
      signal?.addEventListener("abort", () => reject(new AgentError("GUEST_UNREACHABLE")), { once: true });
      await Promise.race([execution.inputGate, given]);
    }
    const accepted = Buffer.byteLength(execution.input);
    if (offset > accepted) return { accepted, closed: execution.inputClosed, gap: true };
    if (!execution.inputClosed) {
      execution.input += Buffer.from(data.subarray(accepted - offset)).toString();
      if (eof) execution.inputClosed = true;
    }
    return { accepted: Buffer.byteLength(execution.input), closed: execution.inputClosed, gap: false };
  }

  async signal(id: string, signal: number): Promise<void> {
    const execution = this.get(id);
    if (execution.exited) throw new AgentError("EXECUTION_EXITED");
    execution.signals.push(signal);
    if (signal === 9) execution.exit(null, { signal });
  }

  async resize(id: string, size: TerminalSize): Promise<void> {
    this.get(id).size = size;
  }

  async list(): Promise<readonly GuestExecution[]> {
    await this.#thaw?.promise;
    return [...this.all.values()].map((execution) => execution.state());
  }

  async forget(id: string): Promise<void> {
    if (!this.get(id).exited) throw new AgentError("SANDBOX_BUSY");
    this.all.delete(id);
  }
}
