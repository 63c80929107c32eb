// How native threads wake the event loop: one end of a socket pair is adopted here and carries one fixed-size record for
// every finished job. The channel holds the process alive only while jobs run.
import type { Socket } from "bun";
import { adoptSocket } from "./adopt.ts";
import { check, HostError } from "./status.ts";
import { hostLibrary } from "./library.ts";
import {
  COMPLETION_BYTES,
  type Completion,
  decodeCompletion,
  type JobArguments,
  jobCodecs,
  type JobName,
  type JobResults,
} from "./layout/host.ts";
import { signedWords } from "./memory.ts";

interface Waiting {
  readonly kind: number;
  readonly settle: (completion: Completion) => void;
  readonly fail: (error: Error) => void;
}

class Channel {
  readonly #waiting = new Map<number, Waiting>();
  readonly #number: number;
  #socket: Socket | null = null;
  #closed: Error | null = null;
  #sequence = 0;
  #partial: Uint8Array = new Uint8Array(0);

  constructor() {
    const opened = signedWords(2);
    check(hostLibrary().fluxvm_host_channel_open(opened), "open native channel");
    this.#number = opened[0] as number;
    void this.#adopt(opened[1] as number);
  }

  submit<Name extends JobName>(name: Name, job: JobArguments[Name], object: string | null): Promise<JobResults[Name]> {
    if (this.#closed !== null) return Promise.reject(this.#closed);
    const { promise, resolve, reject } = Promise.withResolvers<JobResults[Name]>();
    const codec = jobCodecs[name];
    const message = codec.encode(job);
    const sequence = ++this.#sequence;
    const status = hostLibrary().fluxvm_host_job_submit(this.#number, codec.kind, BigInt(sequence), message, message);
    if (status < 0) return Promise.reject(new HostError(-status, name, object));
    this.#waiting.set(sequence, {
      kind: codec.kind,
      settle: ({ status, values }) => {
        if (status < 0) reject(new HostError(-status, name, object));
        else resolve(codec.decode(values));
      },
      fail: reject,
    });
    if (this.#waiting.size === 1) this.#socket?.ref();
    return promise;
  }

  async #adopt(fd: number): Promise<void> {
    try {
      this.#socket = await adoptSocket({
        fd,
        socket: {
          data: (_, chunk) => this.#receive(chunk),
          close: () => this.#fail(new Error("the native channel was closed")),
          error: (_, error) => this.#fail(error),
        },
      });
      if (this.#waiting.size === 0) this.#socket.unref();
    } catch (error) {
      this.#fail(new Error("the native channel could not be adopted", { cause: error }));
    }
  }

  #receive(chunk: Uint8Array): void {
    const bytes = this.#partial.length === 0 ? chunk : Buffer.concat([this.#partial, chunk]);
    const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
    let at = 0;
    for (; at + COMPLETION_BYTES <= bytes.length; at += COMPLETION_BYTES) this.#complete(decodeCompletion(view, at));
    // A copy, because the chunk belongs to the runtime after this call.
    this.#partial = bytes.slice(at);
  }

  #complete(completion: Completion): void {
    const waiting = this.#waiting.get(completion.sequence);
    if (waiting === undefined || waiting.kind !== completion.kind) {
      throw new Error(`completion ${completion.sequence} of kind ${completion.kind} belongs to no job`);
    }
    this.#waiting.delete(completion.sequence);
    if (this.#waiting.size === 0) this.#socket?.unref();
    waiting.settle(completion);
  }

  #fail(error: Error): void {
    this.#closed ??= error;
    for (const waiting of this.#waiting.values()) waiting.fail(error);
    this.#waiting.clear();
  }
}

let channel: Channel | null = null;

/**
 * Runs a job on a native thread. `object` says in errors what the job was about. Rejects with a `HostError` that carries
 * the errno; `EAGAIN` when too many jobs wait.
 */
export function runJob<Name extends JobName>(
  name: Name,
  job: JobArguments[Name],
  object: string | null = null,
): Promise<JobResults[Name]> {
  channel ??= new Channel();
  return channel.submit(name, job, object);
}
