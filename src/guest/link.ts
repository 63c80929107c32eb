// The usual way to a guest agent: a unix socket. The event loop receives from it, into new memory each time; while much
// comes it is received beside the event loop, into memory that is used again.
import type { Socket } from "bun";
import { limits } from "../config/limits.ts";
import type { LinkEvents, OpenLink } from "../contracts/channel.ts";
import type { ReceiveMemory } from "./receive-memory.ts";

/** How often something is received before others have their turn. */
const RECEIVED_A_TURN_MAX = 2;
/** How often nothing may have come before the event loop receives again; after so many turns each waits a moment. */
const EMPTY_TURNS_MAX = 4;
const EMPTY_TURNS_AT_ONCE = 1;
const MOMENT_MS = 1;

/** Rejects with what the system says, for example `ENOENT`. Without `memory` the event loop receives everything. */
export function unixLink(path: string, memory: ReceiveMemory | null = null): OpenLink {
  return (events) => {
    let bulk: Bulk | null = null;
    const closed = (reason: string): void => {
      bulk?.stop();
      events.closed(reason);
    };
    return Bun.connect({
      unix: path,
      socket: {
        binaryType: "uint8array",
        open: (socket) => {
          if (memory !== null)
            bulk = new Bulk(socket, memory, { received: (bytes, loan) => events.received(bytes, loan), closed });
          const terminate = (): void => {
            bulk?.stop();
            socket.terminate();
          };
          events.opened({ write: (bytes) => socket.write(bytes), terminate });
        },
        data: (_, bytes) => {
          events.received(bytes as Uint8Array);
          if (bytes.length >= limits.guestMuchBytes) bulk?.begin();
        },
        drain: () => events.writable(),
        close: () => closed("the peer closed the connection"),
        end: () => closed("the peer closed the connection"),
        error: (_, error) => closed(error.message),
      },
    });
  };
}

/** Receives beside the event loop as long as something comes. */
class Bulk {
  readonly #socket: Socket;
  readonly #memory: ReceiveMemory;
  readonly #events: Pick<LinkEvents, "received" | "closed">;
  #emptyTurns = 0;
  #isActive = false;
  #isOver = false;

  constructor(socket: Socket, memory: ReceiveMemory, events: Pick<LinkEvents, "received" | "closed">) {
    this.#socket = socket;
    this.#memory = memory;
    this.#events = events;
  }

  begin(): void {
    // The event loop may have had more of the socket to hand on before it pauses.
    if (this.#isActive || this.#isOver) return;
    this.#isActive = true;
    this.#emptyTurns = 0;
    this.#socket.pause();
    setImmediate(() => this.#turn());
  }

  /** The descriptor is somebody else's from here on. */
  stop(): void {
    this.#isOver = true;
  }

  #turn(): void {
    let count = 0;
    while (!this.#isOver && count < RECEIVED_A_TURN_MAX && this.#receive()) count += 1;
    if (this.#isOver) return;
    this.#emptyTurns = count > 0 ? 0 : this.#emptyTurns + 1;
    if (this.#emptyTurns <= EMPTY_TURNS_AT_ONCE) setImmediate(() => this.#turn());
    else if (this.#emptyTurns < EMPTY_TURNS_MAX) setTimeout(() => this.#turn(), MOMENT_MS);
    else this.#finish();
  }

  /** The event loop receives again, and tells the end and failures too. */
  #finish(): void {
    this.#isActive = false;
    this.#socket.resume();
  }

  #receive(): boolean {
    try {
      return this.#memory.receive(descriptorOf(this.#socket), (bytes, loan) => this.#events.received(bytes, loan));
    } catch (error) {
      this.#events.closed(error instanceof Error ? error.message : String(error));
      return false;
    }
  }
}

/** The public types leave it out. */
function descriptorOf(socket: Socket): number {
  return (socket as unknown as { readonly fd: number }).fd;
}
