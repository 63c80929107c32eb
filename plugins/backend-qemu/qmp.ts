// The QEMU machine protocol: one JSON object a line over a unix socket. Each command has a deadline and fails with a typed
// error; what the other side sends is bounded, because a guest that got out of its machine is the other side.
import type { Socket } from "bun";
import type { Json, JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { Lines } from "../host/lines.ts";
import { printable } from "../host/log-tail.ts";
import { connectOwn } from "../host/own-socket.ts";

const LINE_MAX_CHARS = 1024 * 1024;
const MESSAGE_MAX_CHARS = 500;
const GREETING_TIMEOUT_MS = 10_000;
const JOB_POLL_MS = 20;

/** QEMU refused a command; `qemuClass` is its word for why. */
export class QmpError extends AgentError {
  constructor(
    readonly command: string,
    readonly qemuClass: string,
    description: string,
  ) {
    super("MONITOR_ERROR", `QEMU refused ${command}: ${printable(description.slice(0, MESSAGE_MAX_CHARS))}`);
  }
}

export interface QmpEvent {
  readonly event: string;
  readonly data: JsonObject;
  /** By QEMU's own clock, to the microsecond. */
  readonly atUnixMs: number;
}

interface Waiting {
  readonly command: string;
  readonly resolve: (value: Json) => void;
  readonly reject: (error: Error) => void;
}

export class Qmp {
  readonly #lines = new Lines(LINE_MAX_CHARS, (line) => this.#take(line));
  readonly #waiting = new Map<number, Waiting>();
  readonly #greeting = Promise.withResolvers<void>();
  readonly #listeners = new Set<(event: QmpEvent) => void>();
  readonly #closed = Promise.withResolvers<void>();
  #socket: Socket<unknown> | null = null;
  #unsent = Buffer.alloc(0);
  #lastId = 0;
  #isOpen = true;

  private constructor() {
    // Whoever waits for it takes the failure from `connect`.
    this.#greeting.promise.catch(() => undefined);
  }

  /** Connects and negotiates. Rejects with `GUEST_UNREACHABLE` where nobody listens, or nobody greets. */
  static async connect(path: string): Promise<Qmp> {
    const self = new Qmp();
    try {
      await connectOwn(path, {
        open: (socket) => {
          self.#socket = socket;
        },
        data: (_, bytes) => self.#receive(bytes),
        drain: () => self.#flush(),
        close: () => self.close(),
        end: () => self.close(),
        error: () => self.close(),
      });
    } catch (cause) {
      throw new AgentError("GUEST_UNREACHABLE", "QEMU does not listen", { cause });
    }
    const timer = setTimeout(() => self.close(), GREETING_TIMEOUT_MS);
    try {
      await self.#greeting.promise;
      await self.run("qmp_capabilities", {}, GREETING_TIMEOUT_MS);
    } catch (error) {
      self.close();
      throw error;
    } finally {
      clearTimeout(timer);
    }
    return self;
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Resolves when the connection has ended, from whichever side. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /** Calls `listener` with each event; returns how to stop. */
  listen(listener: (event: QmpEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  /** Rejects with a `QmpError`, `DEADLINE_EXCEEDED`, or `GUEST_UNREACHABLE` when the connection ends. */
  run(command: string, args: JsonObject, timeoutMs: number): Promise<Json> {
    if (!this.#isOpen) return Promise.reject(gone());
    const id = ++this.#lastId;
    const { promise, resolve, reject } = Promise.withResolvers<Json>();
    const timer = setTimeout(() => {
      this.#waiting.delete(id);
      reject(new AgentError("DEADLINE_EXCEEDED", `QEMU did not answer ${command} within ${timeoutMs} ms`));
    }, timeoutMs);
    this.#waiting.set(id, { command, resolve, reject });
    this.#send(`${JSON.stringify({ execute: command, arguments: args, id })}\n`);
    return promise.finally(() => clearTimeout(timer));
  }

  /** Runs a command that starts a job, and waits until the job is over. Rejects with a `QmpError` when it failed. */
  async runJob(command: string, args: JsonObject, jobId: string, timeoutMs: number): Promise<void> {
    const deadline = performance.now() + timeoutMs;
    await this.run(command, { "job-id": jobId, ...args }, timeoutMs);
    for (;;) {
      const leftMs = Math.ceil(deadline - performance.now());
      if (leftMs <= 0) throw new AgentError("DEADLINE_EXCEEDED", `QEMU did not end ${command} within ${timeoutMs} ms`);
      const jobs = (await this.run("query-jobs", {}, leftMs)) as readonly JsonObject[];
      const job = jobs.find(({ id }) => id === jobId);
      if (job === undefined) throw new QmpError(command, "JobLost", "its job is gone");
      if (job.status === "concluded") {
        await this.run("job-dismiss", { id: jobId }, Math.max(1000, leftMs));
        if (typeof job.error === "string") throw new QmpError(command, "JobFailed", job.error);
        return;
      }
      await Bun.sleep(JOB_POLL_MS);
    }
  }

  close(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#socket?.terminate();
    const error = gone();
    this.#greeting.reject(error);
    for (const { reject } of this.#waiting.values()) reject(error);
    this.#waiting.clear();
    this.#closed.resolve();
  }

  #send(text: string): void {
    this.#unsent = Buffer.concat([this.#unsent, Buffer.from(text)]);
    this.#flush();
  }

  #flush(): void {
    if (this.#socket === null || this.#unsent.length === 0) return;
    const taken = Math.max(0, this.#socket.write(this.#unsent));
    this.#unsent = this.#unsent.subarray(taken);
  }

  #receive(bytes: Uint8Array): void {
    if (!this.#lines.receive(bytes)) this.close();
  }

  #take(line: string): void {
    let message: JsonObject;
    try {
      message = JSON.parse(line) as JsonObject;
    } catch {
      this.close();
      return;
    }
    if (typeof message !== "object" || message === null) return;
    if ("QMP" in message) return this.#greeting.resolve();
    if (typeof message.event === "string") return this.#tell(message.event, message);
    const waiting = typeof message.id === "number" ? this.#waiting.get(message.id) : undefined;
    if (waiting === undefined) return;
    this.#waiting.delete(message.id as number);
    if ("return" in message) return waiting.resolve(message.return ?? null);
    const error = (message.error ?? {}) as JsonObject;
    waiting.reject(new QmpError(waiting.command, textOf(error.class), textOf(error.desc)));
  }

  #tell(event: string, { data, timestamp }: JsonObject): void {
    const { seconds, microseconds } = objectOf(timestamp);
    const told = { event, data: objectOf(data), atUnixMs: Number(seconds) * 1000 + Number(microseconds) / 1000 };
    for (const listener of this.#listeners) listener(told);
  }
}

function objectOf(value: Json | undefined): JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as JsonObject) : {};
}

function gone(): AgentError {
  return new AgentError("GUEST_UNREACHABLE", "the connection to QEMU has ended");
}

/** A word of QEMU's; what is none may have no text at all. */
const textOf = (value: Json | undefined): string => (typeof value === "string" ? value : "no reason was given");
