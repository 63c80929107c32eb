// Memory that content from guests is received into, and again once those who got it have given all of it back: what
// comes in masses would cost more to make room for than to move.
import { limits } from "../config/limits.ts";
import type { Loan } from "../contracts/channel.ts";

/** Receives what a socket has now: how many bytes; 0 where that is nothing, now or ever again. Throws when it failed. */
export type Receive = (fd: number, into: Uint8Array<ArrayBuffer>) => number;

/** Less room than this is not worth a call. */
const WORTH_RECEIVING_BYTES = limits.guestReceiveBytes / 2;

export class ReceiveMemory {
  readonly #receive: Receive;
  readonly #unused: Room[] = [];
  #current: Room | null = null;

  constructor(receive: Receive) {
    this.#receive = receive;
  }

  /** Receives what the socket has now, and hands it on. False when that is nothing. Throws when the socket failed. */
  receive(fd: number, received: (bytes: Uint8Array, loan: Loan) => void): boolean {
    const room = this.#roomy();
    const count = this.#receive(fd, room.spare);
    if (count > 0) received(room.lend(count), room);
    return count > 0;
  }

  #roomy(): Room {
    if (this.#current === null || this.#current.spare.length < WORTH_RECEIVING_BYTES) {
      this.#current = this.#unused.pop() ?? new Room((room) => this.#keep(room));
    }
    return this.#current;
  }

  #keep(room: Room): void {
    if (room !== this.#current && this.#unused.length < limits.guestReceiveKeptMax) this.#unused.push(room);
  }
}

class Room implements Loan {
  readonly #memory = new Uint8Array(new ArrayBuffer(limits.guestReceiveBytes));
  readonly #whole: (room: Room) => void;
  #usedBytes = 0;
  #lentBytes = 0;

  /** `whole` is called when all of it can be used again. */
  constructor(whole: (room: Room) => void) {
    this.#whole = whole;
  }

  get spare(): Uint8Array<ArrayBuffer> {
    return this.#memory.subarray(this.#usedBytes);
  }

  /** The first bytes of what was spare. */
  lend(bytes: number): Uint8Array {
    this.#lentBytes += bytes;
    this.#usedBytes += bytes;
    return this.#memory.subarray(this.#usedBytes - bytes, this.#usedBytes);
  }

  giveBack(bytes: number): void {
    if (bytes > this.#lentBytes) throw new RangeError("more is given back than was lent");
    this.#lentBytes -= bytes;
    // Once only: nothing given back of nothing lent would have two use it at a time.
    if (bytes === 0 || this.#lentBytes > 0) return;
    this.#usedBytes = 0;
    this.#whole(this);
  }
}
