// A virtual machine on native threads of this process. Nothing here waits: starting and ending are asked for and told later
// by records, and everything else is said over the machine's control socket, which is one of the event loop's.
import type { Socket, SocketHandler } from "bun";
import { constants } from "node:os";
import { adoptSocket } from "../adopt.ts";
import {
  decodeRecord,
  decodeStarted,
  type EndReason,
  END_REASONS,
  RECORD_BYTES,
  STARTED_WORDS,
} from "../layout/engine.ts";
import { copyOfBytes, signedWords } from "../memory.ts";
import { check, HostError } from "../status.ts";
import { type EngineLibrary, engineLibrary } from "./library.ts";

/** What the hypervisor takes as a configuration, too. */
const CONFIG_MAX_BYTES = 64 * 1024;

/** How a machine ended, in one word of the schema and in words for people. */
export interface MachineEnd {
  readonly reason: EndReason;
  readonly message: string;
}

/** A machine that could not be made. `code` is the errno's name: `EINVAL` for a configuration that makes no sense. */
export class MachineStartError extends Error {
  override readonly name = "MachineStartError";

  constructor(
    message: string,
    override readonly cause: HostError,
  ) {
    super(message);
  }

  get code(): string {
    return this.cause.code;
  }
}

/** A machine that runs, until `ended` settles. It ends with this process, too. */
export class ThreadMachine {
  readonly #library: EngineLibrary;
  readonly #handle: number;
  /** The descriptor of the control socket until somebody takes it. */
  #control: number | null;

  private constructor(
    library: EngineLibrary,
    handle: number,
    control: number,
    /** Resolves once all threads of the machine are gone; never rejects. */
    readonly ended: Promise<MachineEnd>,
  ) {
    this.#library = library;
    this.#handle = handle;
    this.#control = control;
  }

  /**
   * Starts what a boot configuration (JSON of the hypervisor) describes. Resolves when the guest runs. Rejects with a
   * `MachineStartError` when it cannot be made; nothing of it is left then. Throws when the library cannot be used.
   */
  static async start(libraryPath: string, config: string): Promise<ThreadMachine> {
    const library = engineLibrary(libraryPath);
    const bytes = new TextEncoder().encode(config);
    if (bytes.length === 0 || bytes.length > CONFIG_MAX_BYTES) {
      throw new RangeError(`a boot configuration has 1 to ${CONFIG_MAX_BYTES} bytes`);
    }
    const lent = copyOfBytes(bytes);
    const words = signedWords(STARTED_WORDS);
    check(library.fluxvm_engine_start(lent, lent, words), "start machine");
    const { handle, control, events } = decodeStarted(words);
    const story = new Story();
    const machine = new ThreadMachine(library, handle, control, story.ended);
    try {
      await story.follow(events);
      await story.started;
      return machine;
    } catch (error) {
      machine.end();
      await machine.#discardControl();
      throw error;
    }
  }

  /** The machine's control socket, which speaks the hypervisor's protocol. It can be taken once. */
  async connectControl(socket: SocketHandler): Promise<Socket> {
    const fd = this.#control;
    if (fd === null) throw new Error("the control socket of this machine was taken before");
    this.#control = null;
    return adoptSocket({ fd, socket });
  }

  /** Asks the machine to end, whatever its guest does; `ended` tells when it has. Again does no harm. */
  end(): void {
    const status = this.#library.fluxvm_engine_end(this.#handle);
    if (status !== -constants.errno.EBADF) check(status, "end machine");
  }

  async #discardControl(): Promise<void> {
    if (this.#control === null) return;
    (await this.connectControl({ data() {} })).terminate();
  }
}

/** What the records of one machine tell. */
class Story {
  readonly #started = Promise.withResolvers<void>();
  readonly #ended = Promise.withResolvers<MachineEnd>();
  #partial: Uint8Array = new Uint8Array(0);

  readonly started = this.#started.promise;
  readonly ended = this.#ended.promise;

  /** Reads the records as they come; the descriptor is this object's from here on. */
  async follow(fd: number): Promise<void> {
    // Only whoever starts the machine waits for this, and may have failed before.
    this.started.catch(() => {});
    await adoptSocket({
      fd,
      socket: {
        data: (_, chunk) => this.#receive(chunk),
        close: () => this.#finish(),
        error: (_, error) => this.#fail(error),
      },
    });
  }

  #receive(chunk: Uint8Array): void {
    // A copy, because the chunk belongs to the runtime after this call.
    let bytes: Uint8Array = Buffer.concat([this.#partial, chunk]);
    for (; bytes.length >= RECORD_BYTES; bytes = bytes.subarray(RECORD_BYTES)) {
      this.#hear(bytes.subarray(0, RECORD_BYTES));
    }
    this.#partial = bytes;
  }

  #hear(record: Uint8Array): void {
    const { kind, status, text } = decodeRecord(record);
    if (kind === "ended") {
      this.#ended.resolve({ reason: END_REASONS[status] ?? "failed", message: text });
    } else if (kind === "started" && status === 0) {
      this.#started.resolve();
    } else if (kind === "started") {
      this.#fail(new MachineStartError(text, new HostError(-status, "start machine")));
    }
  }

  /** The socket ends with the machine: without a last word something of the engine broke. */
  #finish(): void {
    this.#fail(new MachineStartError("the engine failed", new HostError(constants.errno.EIO, "start machine")));
  }

  #fail(error: Error): void {
    this.#started.reject(error);
    this.#ended.resolve({ reason: "failed", message: error.message });
  }
}
