// What the KVM host and its user say to each other, over one byte stream that carries any number of jobs. Shared by both
// ends. A frame is a kind (u8), a job (u32) and a length (u32), little endian, and that many bytes.

export const Kind = {
  /** From the runner, job 0: it listens. The content is the program's version. */
  ready: 0,
  /** To the runner: starts a job, described by a `JobRequest` as JSON. */
  start: 1,
  /** To the runner: bytes of the job's standard input; an empty frame ends it. */
  input: 2,
  /** To the runner: sends a signal, whose name is the content. */
  signal: 3,
  /** From the runner: bytes of the job's standard output and standard error. */
  output: 4,
  errors: 5,
  /** From the runner, the last of a job: a `JobEnd` as JSON. */
  end: 6,
} as const;
export type Kind = (typeof Kind)[keyof typeof Kind];

export interface JobRequest {
  readonly argv: readonly string[];
  readonly folder: string;
  readonly env: Readonly<Record<string, string>>;
}

export interface JobEnd {
  /** Exit status as a shell gives it: 128 and the signal's number after a signal, 127 when it could not be started. */
  readonly status: number;
  /** Why it could not be started. */
  readonly failure?: string;
}

export interface Frame {
  readonly kind: Kind;
  readonly job: number;
  readonly content: Uint8Array;
}

const HEADER_BYTES = 9;
export const CONTENT_BYTES_MAX = 256 << 10;

export function encodeFrame({ kind, job, content }: Frame): Uint8Array {
  const bytes = new Uint8Array(HEADER_BYTES + content.length);
  const view = new DataView(bytes.buffer);
  view.setUint8(0, kind);
  view.setUint32(1, job, true);
  view.setUint32(5, content.length, true);
  bytes.set(content, HEADER_BYTES);
  return bytes;
}

/** Frames of at most the largest content, for content of any size; none for no content. */
export function* framesOf(kind: Kind, job: number, content: Uint8Array): Generator<Uint8Array> {
  for (let at = 0; at < content.length; at += CONTENT_BYTES_MAX) {
    yield encodeFrame({ kind, job, content: content.subarray(at, at + CONTENT_BYTES_MAX) });
  }
}

/** Cuts a stream of bytes into frames. */
export class FrameReader {
  #pending = new Uint8Array(0);

  /** @throws Error when the stream is not one of frames */
  *push(bytes: Uint8Array): Generator<Frame> {
    const joined = new Uint8Array(this.#pending.length + bytes.length);
    joined.set(this.#pending);
    joined.set(bytes, this.#pending.length);
    let at = 0;
    while (joined.length - at >= HEADER_BYTES) {
      const view = new DataView(joined.buffer, at);
      const length = view.getUint32(5, true);
      if (length > CONTENT_BYTES_MAX) throw new Error(`a frame of ${length} bytes is too long`);
      if (joined.length - at - HEADER_BYTES < length) break;
      const content = joined.slice(at + HEADER_BYTES, at + HEADER_BYTES + length);
      yield { kind: view.getUint8(0) as Kind, job: view.getUint32(1, true), content };
      at += HEADER_BYTES + length;
    }
    this.#pending = joined.slice(at);
  }
}
