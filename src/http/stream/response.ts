// The response that sends the frames of a source. A frame is asked for only when the client can take it, so a reader that
// stalls holds up its source and grows nothing; silence is broken by `keep_alive`; a failure becomes the last frame.
import { limits } from "../../config/limits.ts";
import type { Logger } from "../../contracts/log.ts";
import { asAgentError } from "../../errors/agent-error.ts";
import { catalogue } from "../../errors/catalogue.ts";
import type { Place } from "./attached.ts";
import { type Frame, type FrameSource, LAST_FRAME_TYPES } from "./frame.ts";
import type { Framing } from "./framing.ts";
import { lastingResponse } from "./lasting.ts";

type Controller = ReadableStreamDefaultController<Uint8Array>;

export interface StreamOptions {
  readonly framing: Framing;
  /** From `AttachedStreams.take`; given back when the stream is over. */
  readonly place: Place;
  readonly log: Logger;
  /** 200 unless said. */
  readonly status?: 200 | 201;
  readonly keepAliveMs?: number;
}

/** A response that streams `source` to its end. */
export function streamResponse(source: FrameSource, options: StreamOptions): Response {
  const { body, ended } = frameStream(source, options);
  const init = { status: options.status ?? 200, headers: { "content-type": options.framing.contentType } };
  return lastingResponse(body, init, ended);
}

/** The encoded frames of `source`, a part of one a chunk; `ended` resolves when it is over, also when the reader left. */
export function frameStream(
  source: FrameSource,
  options: Omit<StreamOptions, "status">,
): { readonly body: ReadableStream<Uint8Array>; readonly ended: Promise<void> } {
  const pump = new FramePump(source, options);
  const body = new ReadableStream<Uint8Array>(
    {
      start: (controller) => pump.start(controller),
      pull: () => pump.pull(),
      cancel: () => pump.over(),
    },
    { highWaterMark: 0 },
  );
  return { body, ended: pump.ended };
}

type Result = { readonly frame: Frame | null } | { readonly failure: unknown };

class FramePump {
  readonly ended: Promise<void>;
  readonly #end: () => void;
  #controller: Controller | null = null;
  /** Whether the source has been asked and has not answered. */
  #isAsked = false;
  /** What the source answered while the client was not ready. */
  #result: Result | null = null;
  /** Set while the client is ready for a frame. */
  #delivered: (() => void) | null = null;
  #timer: Timer | undefined;
  #isOver = false;

  constructor(
    private readonly source: FrameSource,
    private readonly options: StreamOptions,
  ) {
    const { promise, resolve } = Promise.withResolvers<void>();
    this.ended = promise;
    this.#end = resolve;
  }

  start(controller: Controller): void {
    this.#controller = controller;
    this.options.place.onInterrupt((reason) => this.#settle({ failure: reason }, true));
  }

  /** The client is ready; resolves when a frame has gone out or the stream is over. */
  pull(): Promise<void> {
    return new Promise((resolve) => {
      if (this.#isOver) return resolve();
      this.#delivered = resolve;
      this.#timer = setTimeout(() => this.#send({ type: "keep_alive" }), this.#keepAliveMs);
      if (this.#result !== null) this.#deliver(this.#result);
      else this.#ask();
    });
  }

  /** Ends the stream without another frame. */
  over(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#result = null;
    this.source.close();
    this.options.place.leave();
    this.#ready();
    this.#end();
  }

  get #keepAliveMs(): number {
    return this.options.keepAliveMs ?? limits.streamKeepAliveMs;
  }

  #ask(): void {
    if (this.#isAsked) return;
    this.#isAsked = true;
    this.source.next().then(
      (frame) => this.#settle({ frame }, false),
      (failure: unknown) => this.#settle({ failure }, false),
    );
  }

  /** `isFinal`: not the source's answer, and sent even to a client that is not ready. */
  #settle(result: Result, isFinal: boolean): void {
    if (this.#isOver) return;
    if (!isFinal) this.#isAsked = false;
    if (isFinal || this.#delivered !== null) this.#deliver(result);
    else this.#result = result;
  }

  #deliver(result: Result): void {
    this.#result = null;
    const frame = "failure" in result ? this.#errorFrame(result.failure) : result.frame;
    if (frame !== null && !LAST_FRAME_TYPES.has(frame.type)) return this.#send(frame);
    // At once, so that nothing can follow the frame that says how it ended.
    if (frame !== null) this.#enqueue(frame);
    this.#controller?.close();
    this.over();
  }

  #send(frame: Frame): void {
    this.#enqueue(frame);
    this.#ready();
  }

  #enqueue(frame: Frame): void {
    for (const part of this.options.framing.encode(frame)) this.#controller?.enqueue(part);
  }

  #ready(): void {
    clearTimeout(this.#timer);
    this.#delivered?.();
    this.#delivered = null;
  }

  #errorFrame(failure: unknown): Frame {
    const error = asAgentError(failure);
    if (error.status >= 500 && !catalogue[error.code].retryable) {
      this.options.log.error({ code: error.code, err: error.cause ?? error }, `a stream failed: ${error.message}`);
    }
    return { type: "error", code: error.code, message: error.message };
  }
}
