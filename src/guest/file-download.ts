// An operation whose bytes the host takes piece by piece. Credit is granted for what was taken, so the guest is never more
// than one credit ahead of the reader.
import { limits } from "../config/limits.ts";
import type { FileDownload } from "../contracts/files.ts";
import type { AgentError } from "../errors/agent-error.ts";
import type { GuestConnection } from "./connection.ts";
import { guestUnreachable } from "./faults.ts";
import { integer } from "./fields.ts";
import { Channel, type Message } from "./frame.ts";
import type { Fields } from "./msgpack.ts";
import type { GuestStream, StreamHandler } from "./stream.ts";
import { ProtocolViolation } from "./violation.ts";

export interface DownloadOptions {
  /** The bytes come whenever there are some, so that silence means nothing. */
  readonly isEndless: boolean;
  /** The `opened` event says how many bytes will come. */
  readonly isMeasured: boolean;
}

/** Opens the download; rejects with what the guest says before it begins, or `GUEST_UNREACHABLE` when it says nothing. */
export function download(
  connection: GuestConnection,
  op: string,
  args: Message,
  options: DownloadOptions,
): Promise<StreamDownload> {
  return new Promise((resolve, reject) => {
    const handler: StreamHandler = {
      event: (message) => {
        if (message.event === "opened" && opened.begin(message)) resolve(opened);
      },
      data: (channel, bytes) => {
        if (channel !== Channel.output) throw new ProtocolViolation("bytes on another channel than the output");
        opened.arrived(bytes);
      },
      ended: () => opened.ended(),
      failed: (error) => {
        opened.failed(error);
        reject(error);
      },
    };
    const opened = new StreamDownload(options, (error) => connection.abandon(stream, error));
    const stream = connection.open(op, args, handler, 0);
    opened.attach(stream);
  });
}

export class StreamDownload implements FileDownload {
  size = 0;
  offset = 0;
  length = 0;
  modifiedAtUnixMs = 0;
  #stream: GuestStream | null = null;
  #hasBegun = false;
  readonly #arrived: Uint8Array[] = [];
  #received = 0;
  #end: "open" | "whole" | AgentError = "open";
  #waiting: (() => void) | null = null;
  #timer: Timer | undefined;

  constructor(
    private readonly options: DownloadOptions,
    private readonly abandon: (error: AgentError) => void,
  ) {}

  async read(): Promise<Uint8Array | null> {
    for (;;) {
      const bytes = this.#arrived.shift();
      if (bytes !== undefined) {
        if (this.#end === "open") this.#stream?.grant(bytes.length);
        return bytes;
      }
      if (this.#end === "whole") return null;
      if (this.#end !== "open") throw this.#end;
      if (!this.options.isEndless) this.#expectNews();
      await new Promise<void>((resolve) => {
        this.#waiting = resolve;
      });
    }
  }

  close(): void {
    this.#arrived.length = 0;
    if (this.#end === "open") this.abandon(guestUnreachable("the reader has left"));
  }

  attach(stream: GuestStream): void {
    this.#stream = stream;
    if (!this.#hasBegun && this.#end === "open") this.#expectNews();
  }

  /** False when it had begun already. Throws `ProtocolViolation`. */
  begin(message: Fields): boolean {
    if (this.#hasBegun) return false;
    this.size = integer(message, "size");
    this.offset = integer(message, "offset");
    this.length = integer(message, "length");
    this.modifiedAtUnixMs = integer(message, "modified_ms");
    this.#hasBegun = true;
    this.#wake();
    return true;
  }

  arrived(bytes: Uint8Array): void {
    if (!this.#hasBegun) throw new ProtocolViolation("bytes before the operation began");
    this.#received += bytes.length;
    if (this.options.isMeasured && this.#received > this.length) throw new ProtocolViolation("more than was announced");
    this.#arrived.push(bytes);
    this.#wake();
  }

  ended(): void {
    if (!this.#hasBegun) throw new ProtocolViolation("an end before the operation began");
    if (this.options.isMeasured && this.#received !== this.length)
      throw new ProtocolViolation("less than was announced");
    this.#end = "whole";
    this.#wake();
  }

  failed(error: AgentError): void {
    this.#end = error;
    this.#wake();
  }

  #expectNews(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => {
      this.abandon(guestUnreachable(`no bytes within ${limits.guestFileTimeoutMs} ms`));
    }, limits.guestFileTimeoutMs);
  }

  #wake(): void {
    clearTimeout(this.#timer);
    this.#waiting?.();
    this.#waiting = null;
  }
}
