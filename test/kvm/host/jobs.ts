// The jobs of a running KVM host, seen from outside: starts them, hands on their output as it comes, tells their end.
import type { Socket } from "bun";
import { encodeFrame, type Frame, FrameReader, framesOf, type JobEnd, type JobRequest, Kind } from "./frames.ts";

export interface JobOutput {
  output(bytes: Uint8Array): void;
  errors(bytes: Uint8Array): void;
}

export interface Job {
  readonly ended: Promise<JobEnd>;
  write(bytes: Uint8Array): void;
  endInput(): void;
  signal(name: NodeJS.Signals): void;
}

interface Waiting extends JobOutput {
  end(end: JobEnd): void;
  fail(error: Error): void;
}

export class Jobs {
  readonly #frames = new FrameReader();
  readonly #jobs = new Map<number, Waiting>();
  readonly #ready = Promise.withResolvers<void>();
  readonly #unsent: Uint8Array[] = [];
  #socket: Socket | null = null;
  #next = 1;

  /** Speaks over one end of a socket pair whose other end is the machine's serial port. */
  static async open(descriptor: number): Promise<Jobs> {
    const jobs = new Jobs();
    const socket: Bun.SocketHandler = {
      data: (_socket, bytes) => jobs.#receive(bytes),
      drain: () => jobs.#flush(),
      close: () => jobs.#lose(),
      error: () => jobs.#lose(),
    };
    // Bun takes a descriptor here, its types do not say so.
    const options: object = { fd: descriptor, socket };
    jobs.#socket = await Bun.connect(options as Bun.UnixSocketOptions);
    jobs.#ready.promise.catch(() => undefined);
    return jobs;
  }

  /** Settles when the machine takes jobs. */
  get ready(): Promise<void> {
    return this.#ready.promise;
  }

  start(request: JobRequest, output: JobOutput): Job {
    const job = this.#next++;
    const { promise: ended, resolve, reject } = Promise.withResolvers<JobEnd>();
    // Whoever waits for the end hears of a lost machine; nobody has to.
    ended.catch(() => undefined);
    this.#jobs.set(job, { ...output, end: resolve, fail: reject });
    const send = (kind: Kind, content: Uint8Array): void => this.#send(encodeFrame({ kind, job, content }));
    const text = new TextEncoder();
    send(Kind.start, text.encode(JSON.stringify(request)));
    return {
      ended,
      write: (bytes) => {
        for (const frame of framesOf(Kind.input, job, bytes)) this.#send(frame);
      },
      endInput: () => send(Kind.input, new Uint8Array(0)),
      signal: (name) => send(Kind.signal, text.encode(name)),
    };
  }

  #receive(bytes: Uint8Array): void {
    for (const frame of this.#frames.push(bytes)) this.#handle(frame);
  }

  #handle({ kind, job, content }: Frame): void {
    if (kind === Kind.ready) this.#ready.resolve();
    const waiting = this.#jobs.get(job);
    if (kind === Kind.output) waiting?.output(content);
    if (kind === Kind.errors) waiting?.errors(content);
    if (kind !== Kind.end) return;
    this.#jobs.delete(job);
    waiting?.end(JSON.parse(new TextDecoder().decode(content)) as JobEnd);
  }

  #send(bytes: Uint8Array): void {
    this.#unsent.push(bytes);
    this.#flush();
  }

  #flush(): void {
    for (let first = this.#unsent[0]; first !== undefined; first = this.#unsent[0]) {
      const written = this.#socket?.write(first) ?? 0;
      if (written < first.length) {
        this.#unsent[0] = first.subarray(Math.max(written, 0));
        return;
      }
      this.#unsent.shift();
    }
  }

  #lose(): void {
    const error = new Error("the machine has ended");
    this.#ready.reject(error);
    for (const waiting of this.#jobs.values()) waiting.fail(error);
    this.#jobs.clear();
  }
}
