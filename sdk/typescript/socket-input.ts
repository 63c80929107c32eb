// Input on its way over a WebSocket: in order, by offset, no more at once than the agent takes, and again from what was
// taken when there is a new connection.

interface Piece {
  readonly offset: number;
  readonly data: Uint8Array;
  readonly eof: boolean;
  isSent: boolean;
  /** Of the last piece of a write. */
  readonly done?: { readonly resolve: () => void; readonly reject: (error: unknown) => void };
}

const PIECE_MAX_BYTES = 64 * 1024;
/** Less than the agent closes a connection for. */
const UNANSWERED_MAX_BYTES = 512 * 1024;
const SMALL_MAX = 0xffff_ffff;

export class SocketInput {
  readonly #pieces: Piece[] = [];
  /** Behind the last byte that was written here; null: where the input goes on is not known yet. */
  #end: number | null = null;
  #taken = 0;
  readonly #early: (() => void)[] = [];
  #failure: { readonly error: unknown } | null = null;

  /** `send` answers false without a connection. */
  constructor(private readonly send: (message: object) => boolean) {}

  /** The input goes on from here. */
  begin(offset: number): void {
    this.#end = offset;
    this.#taken = offset;
    for (const write of this.#early.splice(0)) write();
  }

  write(bytes: Uint8Array, eof: boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const write = (): void => this.#add(bytes, eof, { resolve, reject });
      if (this.#end === null && this.#failure === null) this.#early.push(write);
      else write();
    });
  }

  /** There is a new connection. */
  sendAgain(): void {
    for (const piece of this.#pieces) piece.isSent = false;
    this.#pump();
  }

  /** The answer to the first piece that was sent: so many bytes were taken in all. */
  taken(count: number): void {
    this.#taken = count;
    if (this.#pieces[0]?.isSent === true) this.#pieces.shift()!.done?.resolve();
    this.#pump();
  }

  /** What was sent is not taken, and neither is what comes after it. */
  refused(error: unknown): void {
    if (this.#end !== null) this.#end = this.#taken;
    for (const { done } of this.#pieces.splice(0)) done?.reject(error);
  }

  /** Nothing will be taken any more. */
  fail(error: unknown): void {
    this.#failure ??= { error };
    this.refused(error);
    for (const write of this.#early.splice(0)) write();
  }

  #add(bytes: Uint8Array, eof: boolean, done: NonNullable<Piece["done"]>): void {
    if (this.#failure !== null) return done.reject(this.#failure.error);
    let at = 0;
    do {
      const data = bytes.subarray(at, at + PIECE_MAX_BYTES);
      at += data.length;
      const isLast = at >= bytes.length;
      this.#pieces.push({
        ...{ offset: this.#end!, data, eof: eof && isLast, isSent: false },
        ...(isLast ? { done } : {}),
      });
      this.#end! += data.length;
    } while (at < bytes.length);
    this.#pump();
  }

  #pump(): void {
    let unanswered = 0;
    for (const piece of this.#pieces) {
      unanswered += piece.data.length;
      if (piece.isSent) continue;
      if (unanswered > UNANSWERED_MAX_BYTES) return;
      const { offset, data, eof } = piece;
      // A number that is larger would be sent as a fraction.
      const whole = offset > SMALL_MAX ? BigInt(offset) : offset;
      if (!this.send({ type: "stdin", offset: whole, data, eof })) return;
      piece.isSent = true;
    }
  }
}
