// Runs the jobs that the user of the KVM host sends over the serial port, any number at once, each with its own output.
// Started inside by `start` with the path of that port; ends with the machine.
import { openSync, read, writeSync } from "node:fs";
import { constants } from "node:os";
import { encodeFrame, type Frame, FrameReader, framesOf, type JobEnd, type JobRequest, Kind } from "../frames.ts";

const READ_BYTES = 64 << 10;
const NOT_STARTED = 127;
const SIGNAL_STATUS = 128;
/** Silence after a job's end that is taken for the end of its output. */
const QUIET_MS = 400;

type Child = Bun.Subprocess<"pipe", "pipe", "pipe">;

const port = openSync(process.argv[2] ?? "", "r+");
const children = new Map<number, Child>();
const text = new TextEncoder();

// A write waits until the other end has taken enough: a job that writes faster than its reader is held up, as on a pipe.
function send(frame: Uint8Array): void {
  for (let at = 0; at < frame.length;) at += writeSync(port, frame, at);
}

function finish(job: number, end: JobEnd): void {
  children.delete(job);
  send(encodeFrame({ kind: Kind.end, job, content: text.encode(JSON.stringify(end)) }));
}

/** The two outputs of a job on their way out. */
class Output {
  readonly #job: number;
  #lastMs = performance.now();

  constructor(job: number) {
    this.#job = job;
  }

  async forward(stream: ReadableStream<Uint8Array>, kind: Kind): Promise<void> {
    for await (const bytes of stream) {
      for (const frame of framesOf(kind, this.#job, bytes)) send(frame);
      this.#lastMs = performance.now();
    }
  }

  async quiet(): Promise<void> {
    this.#lastMs = performance.now();
    while (performance.now() - this.#lastMs < QUIET_MS) await Bun.sleep(QUIET_MS / 4);
  }
}

async function runJob(job: number, request: JobRequest): Promise<void> {
  let child: Child;
  try {
    child = Bun.spawn([...request.argv], {
      cwd: request.folder,
      env: { ...process.env, ...request.env },
      stdio: ["pipe", "pipe", "pipe"],
    });
  } catch (error) {
    finish(job, { status: NOT_STARTED, failure: String(error) });
    return;
  }
  children.set(job, child);
  const output = new Output(job);
  const sent = Promise.all([output.forward(child.stdout, Kind.output), output.forward(child.stderr, Kind.errors)]);
  await child.exited;
  // A program that the job left behind may hold its output open for ever.
  await Promise.race([sent, output.quiet()]);
  const signals: Readonly<Record<string, number>> = constants.signals;
  const signal = child.signalCode === null ? null : signals[child.signalCode];
  finish(job, { status: child.exitCode ?? SIGNAL_STATUS + (signal ?? 0) });
}

function handle({ kind, job, content }: Frame): void {
  const child = children.get(job);
  if (kind === Kind.start) {
    void runJob(job, JSON.parse(new TextDecoder().decode(content)) as JobRequest);
  } else if (kind === Kind.input && content.length > 0) {
    child?.stdin.write(content);
    void child?.stdin.flush();
  } else if (kind === Kind.input) {
    void child?.stdin.end();
  } else if (kind === Kind.signal) {
    child?.kill(new TextDecoder().decode(content) as NodeJS.Signals);
  }
}

const frames = new FrameReader();
const buffer = new Uint8Array(READ_BYTES);
function listen(): void {
  read(port, buffer, 0, READ_BYTES, null, (error, length) => {
    if (error !== null) throw error;
    for (const frame of frames.push(buffer.subarray(0, length))) handle(frame);
    // Nothing to read and no error: the other end is away.
    if (length === 0) setTimeout(listen, 100);
    else listen();
  });
}

send(encodeFrame({ kind: Kind.ready, job: 0, content: text.encode(Bun.version) }));
listen();
