// The control of one machine: one JSON object a line each way, answers in the order of the requests. Open files may go with a
// request. Each request has a deadline, and what comes back is bounded, because a guest that got out of its machine is the other side.
import type { Socket, SocketHandler } from "bun";
import { sendNow } from "../../ffi/host/sockets.ts";
import type { JsonObject } from "../../src/contracts/json.ts";
import { AgentError } from "../../src/errors/agent-error.ts";
import { withDeadline } from "../../src/errors/deadline.ts";
import { Lines } from "../host/lines.ts";
import { printable } from "../host/log-tail.ts";
import { connectOwn } from "../host/own-socket.ts";

const LINE_MAX_CHARS = 64 * 1024;
const MESSAGE_MAX_CHARS = 500;
const REPLY_TIMEOUT_MS = 15_000;
/** For what is only worth knowing when it is told at once. */
const LOOK_TIMEOUT_MS = 1_000;
const REACH_PAUSE_MS = 5;
const REASON_PLACEHOLDER = "no reason was given";
const LIFECYCLES = ["created", "running", "paused", "stopped"];

/** Opens a connection to the control and has `handler` told of it. */
export type OpenControl = (handler: SocketHandler<unknown>) => Promise<Socket<unknown>>;

/** The control at a unix socket. */
export const controlAt =
  (path: string): OpenControl =>
  (handler) =>
    connectOwn(path, handler);

/** Of one request. */
interface Asking {
  readonly timeoutMs?: number;
  /** Descriptors of open files that go with it; they must stay open until the answer. */
  readonly files?: readonly number[];
}

/** What is still to be sent: the files go with the first of the bytes. */
interface Unsent {
  bytes: Buffer;
  files: readonly number[];
}

interface Waiting {
  readonly action: string;
  readonly resolve: (reply: JsonObject) => void;
  readonly reject: (error: AgentError) => void;
}

export class Control {
  readonly #open: OpenControl;
  readonly #closed = Promise.withResolvers<void>();
  #connection: Promise<Connection> | null = null;
  #isOver = false;

  constructor(open: OpenControl) {
    this.#open = open;
  }

  /** Resolves when a connection that was there has ended. */
  get closed(): Promise<void> {
    return this.#closed.promise;
  }

  /**
   * Asks for one thing. Rejects with `MONITOR_ERROR` and the reason when it is refused, with `DEADLINE_EXCEEDED`, and with
   * `GUEST_UNREACHABLE` when there is nobody who answers.
   */
  async ask(action: string, parameters: JsonObject = {}, asking: Asking = {}): Promise<JsonObject> {
    const { timeoutMs = REPLY_TIMEOUT_MS, files = [] } = asking;
    const asked = this.#connected().then((connection) => connection.ask(action, parameters, files));
    const reply = await withDeadline(asked, timeoutMs, `the answer of the hypervisor to ${action}`);
    if (reply.status !== "error") return reply;
    const reason = typeof reply.message === "string" ? reply.message : REASON_PLACEHOLDER;
    throw new AgentError(
      "MONITOR_ERROR",
      `the hypervisor refused ${action}: ${printable(reason.slice(0, MESSAGE_MAX_CHARS))}`,
    );
  }

  /** Waits until the machine runs. Rejects when `isOver`, or after `timeoutMs`, with the last failure. */
  async untilRunning(timeoutMs: number, isOver: () => boolean): Promise<void> {
    const deadlineMs = performance.now() + timeoutMs;
    for (;;) {
      const lifecycle = await this.lifecycle().catch((error: unknown) => {
        if (isOver() || performance.now() >= deadlineMs) throw error;
        return null;
      });
      if (lifecycle !== null && lifecycle !== "created") return;
      if (isOver()) throw gone();
      if (performance.now() >= deadlineMs) {
        throw new AgentError("DEADLINE_EXCEEDED", `the machine was not made within ${timeoutMs} ms`);
      }
      await Bun.sleep(REACH_PAUSE_MS);
    }
  }

  /** `created`, `running`, `paused` or `stopped`. Rejects with `MONITOR_ERROR` when it is told anything else. */
  async lifecycle(): Promise<string> {
    const { lifecycle } = await this.ask("metrics");
    if (typeof lifecycle === "string" && LIFECYCLES.includes(lifecycle)) return lifecycle;
    throw new AgentError("MONITOR_ERROR", "the hypervisor does not say whether the machine runs");
  }

  /** Whether writes of the guest to its disks wait because the host has no room for them. */
  async waitsForRoom(): Promise<boolean> {
    const { blk_waiting_for_room: waiting } = await this.ask("metrics", {}, { timeoutMs: LOOK_TIMEOUT_MS });
    return typeof waiting === "number" && waiting > 0;
  }

  /** Lets go of it for good. */
  close(): void {
    this.#isOver = true;
    this.#connection?.then(
      (connection) => connection.close(),
      () => undefined,
    );
  }

  /** One that has ended, or could not be had, is followed by another. */
  #connected(): Promise<Connection> {
    if (this.#isOver) return Promise.reject(gone());
    this.#connection ??= Connection.open(this.#open, () => {
      this.#connection = null;
      this.#closed.resolve();
    }).catch((error: unknown) => {
      this.#connection = null;
      throw error;
    });
    return this.#connection;
  }
}

class Connection {
  readonly #lines = new Lines(LINE_MAX_CHARS, (line) => this.#take(line));
  /** In the order in which they were asked; one that nobody waits for any more keeps its place. */
  readonly #waiting: Waiting[] = [];
  readonly #ended: () => void;
  #socket: Socket<unknown> | null = null;
  readonly #unsent: Unsent[] = [];
  #isOpen = true;

  private constructor(ended: () => void) {
    this.#ended = ended;
  }

  static async open(open: OpenControl, ended: () => void): Promise<Connection> {
    const self = new Connection(ended);
    try {
      self.#socket = await open({
        data: (_, bytes) => self.#receive(bytes),
        drain: () => self.#flush(),
        close: () => self.close(),
        end: () => self.close(),
        error: () => self.close(),
      });
    } catch (cause) {
      throw new AgentError("GUEST_UNREACHABLE", "the hypervisor does not listen", { cause });
    }
    return self;
  }

  ask(action: string, parameters: JsonObject, files: readonly number[]): Promise<JsonObject> {
    if (!this.#isOpen) return Promise.reject(gone());
    const { promise, resolve, reject } = Promise.withResolvers<JsonObject>();
    this.#waiting.push({ action, resolve, reject });
    this.#unsent.push({ bytes: Buffer.from(`${JSON.stringify({ ...parameters, action })}\n`), files });
    this.#flush();
    return promise;
  }

  close(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#socket?.terminate();
    for (const { reject } of this.#waiting.splice(0)) reject(gone());
    this.#ended();
  }

  #flush(): void {
    for (let next = this.#unsent[0]; next !== undefined && this.#socket !== null; next = this.#unsent[0]) {
      // The other side may read lines from before together with files, and would take them for those of the first line.
      const isAlone = this.#waiting.length === this.#unsent.length;
      if (next.files.length > 0 && !isAlone) return;
      const taken = this.#send(this.#socket, next);
      if (taken > 0) next.files = [];
      next.bytes = next.bytes.subarray(taken);
      if (next.bytes.length > 0) return;
      this.#unsent.shift();
    }
  }

  /** How much of it went. What was written before has left the socket: it takes nothing that it does not send. */
  #send(socket: Socket<unknown>, { bytes, files }: Unsent): number {
    if (files.length === 0) return Math.max(0, socket.write(bytes));
    try {
      return sendNow(socket, bytes, files);
    } catch {
      // Whoever waits is told with the end of the connection.
      this.close();
      return 0;
    }
  }

  #receive(bytes: Uint8Array): void {
    if (!this.#lines.receive(bytes)) this.close();
  }

  /** An answer to nothing, or what is no answer, ends the connection: nothing after it could be told apart. */
  #take(line: string): void {
    const waiting = this.#waiting.shift();
    const reply = waiting === undefined ? null : parsed(line);
    if (waiting === undefined || reply === null) {
      waiting?.reject(new AgentError("MONITOR_ERROR", `the hypervisor gave no answer to ${waiting.action}`));
      return this.close();
    }
    waiting.resolve(reply);
    this.#flush();
  }
}

function parsed(line: string): JsonObject | null {
  try {
    const reply: unknown = JSON.parse(line);
    const isObject = typeof reply === "object" && reply !== null && !Array.isArray(reply);
    return isObject ? (reply as JsonObject) : null;
  } catch {
    return null;
  }
}

const gone = (): AgentError => new AgentError("GUEST_UNREACHABLE", "the connection to the hypervisor has ended");
