// The host's side of an exchange with the workload in a guest (`workload.c`): a length, so many bytes one way, as many back,
// and each side checks what it gets.
import type { Socket } from "bun";

/** A way to the other side; it takes what it can and says how many bytes that were. */
interface Way {
  write(bytes: Uint8Array): number;
}

const SEED_OUT = 1;
const SEED_BACK = 2;
const LENGTH_BYTES = 8;
const PIECE_WORDS = 16_384;

/** The bytes that one side sends, piece by piece. */
class Words {
  #word: number;
  #piece = Buffer.alloc(0);

  constructor(seed: number) {
    this.#word = seed;
  }

  /** At most `bytes` of them, of which `used` says afterwards how many were taken. */
  look(bytes: number): Buffer {
    if (this.#piece.length === 0) {
      const words = new Uint32Array(PIECE_WORDS);
      let word = this.#word;
      for (let index = 0; index < PIECE_WORDS; index += 1) {
        word ^= word << 13;
        word ^= word >>> 17;
        word ^= word << 5;
        words[index] = word;
      }
      this.#word = word;
      this.#piece = Buffer.from(words.buffer);
    }
    return this.#piece.subarray(0, bytes);
  }

  used(bytes: number): void {
    this.#piece = this.#piece.subarray(bytes);
  }
}

/** One end of an exchange. `ended` resolves with the bytes each way once all were right, and rejects at the first wrong one. */
export class Exchange {
  readonly ended: Promise<number>;
  readonly #end = Promise.withResolvers<number>();
  readonly #incoming: Words;
  readonly #outgoing: Words;
  #header: Buffer = Buffer.alloc(0);
  #bytes: number | null = null;
  #toReceive = 0;
  #toSend = 0;
  /** What goes out before the words do. */
  #opening = Buffer.alloc(0);
  #isSending: boolean;

  /** `bytes`: how many each way when this side begins; null when the other side says so. */
  constructor(bytes: number | null) {
    const isFirst = bytes !== null;
    this.ended = this.#end.promise;
    this.ended.catch(() => undefined);
    this.#incoming = new Words(isFirst ? SEED_BACK : SEED_OUT);
    this.#outgoing = new Words(isFirst ? SEED_OUT : SEED_BACK);
    this.#isSending = isFirst;
    if (bytes === null) return;
    this.#opening = Buffer.alloc(LENGTH_BYTES);
    this.#opening.writeBigUInt64LE(BigInt(bytes));
    this.#set(bytes);
  }

  #set(bytes: number): void {
    [this.#bytes, this.#toReceive, this.#toSend] = [bytes, bytes, bytes];
  }

  /** Writes as much as the socket takes; to be called when it is open and when it has room again. */
  send(socket: Way): void {
    while (this.#isSending && (this.#opening.length > 0 || this.#toSend > 0)) {
      const isOpening = this.#opening.length > 0;
      const piece = isOpening ? this.#opening : this.#outgoing.look(this.#toSend);
      const written = Math.max(0, socket.write(piece));
      if (isOpening) this.#opening = this.#opening.subarray(written);
      else {
        this.#outgoing.used(written);
        this.#toSend -= written;
      }
      if (written < piece.length) return;
    }
    this.#finish();
  }

  receive(socket: Way, received: Uint8Array): void {
    let bytes: Buffer = Buffer.from(received);
    if (this.#bytes === null) {
      this.#header = Buffer.concat([this.#header, bytes]);
      if (this.#header.length < LENGTH_BYTES) return;
      this.#set(Number(this.#header.readBigUInt64LE()));
      bytes = this.#header.subarray(LENGTH_BYTES);
    }
    while (bytes.length > 0) {
      const expected = this.#incoming.look(Math.min(bytes.length, this.#toReceive));
      if (expected.length === 0 || !bytes.subarray(0, expected.length).equals(expected)) {
        return this.#end.reject(new Error(`wrong bytes, ${this.#toReceive} before the end`));
      }
      this.#incoming.used(expected.length);
      this.#toReceive -= expected.length;
      bytes = bytes.subarray(expected.length);
    }
    if (this.#toReceive > 0) return;
    this.#isSending = true;
    this.send(socket);
  }

  fail(reason: string): void {
    this.#end.reject(new Error(`${reason}, with ${this.#toReceive} to receive and ${this.#toSend} to send`));
  }

  #finish(): void {
    if (this.#bytes !== null && this.#toReceive === 0 && this.#toSend === 0) this.#end.resolve(this.#bytes);
  }
}

/** What a server of exchanges does with its connections; their ends are given to `began`. */
export function answering(began: (exchange: Exchange) => void) {
  return {
    open: (socket: Socket<Exchange>) => {
      socket.data = new Exchange(null);
      began(socket.data);
    },
    data: (socket: Socket<Exchange>, bytes: Buffer) => socket.data.receive(socket, bytes),
    drain: (socket: Socket<Exchange>) => socket.data.send(socket),
    close: (socket: Socket<Exchange>) => socket.data.fail("closed"),
    error: (socket: Socket<Exchange>, error: Error) => socket.data.fail(error.message),
  };
}
