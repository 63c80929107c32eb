// The way to a port of the guest through the engine: a unix socket on which one asks for the port in a line, and has the
// connection once the line is answered.
import { AgentError } from "../../src/errors/agent-error.ts";
import type { LinkEvents, OpenLink } from "../../src/contracts/channel.ts";
import { connectOwn } from "../host/own-socket.ts";

/** Where the guest agent listens. */
export const GUEST_AGENT_PORT = 17_777;
const ANSWER = /^OK \d{1,10}$/;
const ANSWER_MAX_BYTES = 32;
/** Whoever tries gives up before that, and this connection with it. */
const ANSWER_TIMEOUT_MS = 30_000;
const NEW_LINE = 0x0a;

/** Connections to `port` of the guest whose engine listens at `path`. */
export function guestLink(path: string, port: number): OpenLink {
  return async (events) => {
    const answer = new Answer(events);
    const socket = await connectOwn(path, {
      binaryType: "uint8array",
      open: (socket) => {
        socket.write(`CONNECT ${port}\n`);
      },
      data: (socket, bytes) => answer.received(socket, bytes as Uint8Array),
      drain: () => events.writable(),
      close: () => answer.closed("the machine closed the connection"),
      end: () => answer.closed("the machine closed the connection"),
      error: (_, error) => answer.closed(error.message),
    });
    const timer = setTimeout(() => answer.closed("the machine does not answer"), ANSWER_TIMEOUT_MS);
    try {
      await answer.given;
    } catch (error) {
      socket.terminate();
      throw error;
    } finally {
      clearTimeout(timer);
    }
  };
}

type Link = Parameters<LinkEvents["opened"]>[0];

/** The line that comes first, and what follows it. */
class Answer {
  readonly #given = Promise.withResolvers<void>();
  #line = new Uint8Array(0);
  #isGiven = false;

  constructor(private readonly events: LinkEvents) {
    // It may be wrong before anybody waits for it.
    this.#given.promise.catch(() => undefined);
  }

  /** Resolves once the guest has taken the connection. */
  get given(): Promise<void> {
    return this.#given.promise;
  }

  received(link: Link, bytes: Uint8Array): void {
    if (this.#isGiven) return this.events.received(bytes);
    this.#line = Buffer.concat([this.#line, bytes]);
    const end = this.#line.indexOf(NEW_LINE);
    if (end < 0 && this.#line.length <= ANSWER_MAX_BYTES) return;
    if (end < 0 || !ANSWER.test(Buffer.from(this.#line.subarray(0, end)).toString("latin1"))) {
      return this.closed("the machine gave an answer that makes no sense");
    }
    const rest = this.#line.subarray(end + 1);
    this.#isGiven = true;
    this.events.opened(link);
    this.#given.resolve();
    if (rest.length > 0) this.events.received(rest);
  }

  closed(reason: string): void {
    if (this.#isGiven) return this.events.closed(reason);
    this.#given.reject(new AgentError("GUEST_UNREACHABLE", reason));
  }
}
