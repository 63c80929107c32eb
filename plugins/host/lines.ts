// Text that a program of the host says in pieces, as lines. Whoever says it may have been taken over by a guest, so a line has a
// bound.

export class Lines {
  readonly #decoder = new TextDecoder();
  readonly #maxChars: number;
  readonly #take: (line: string) => void;
  #rest = "";

  /** `take` is called with each line, without its end. */
  constructor(maxChars: number, take: (line: string) => void) {
    this.#maxChars = maxChars;
    this.#take = take;
  }

  /** The next piece. False: what is no whole line yet is longer than a line may be. */
  receive(bytes: Uint8Array): boolean {
    this.#rest += this.#decoder.decode(bytes, { stream: true });
    for (let end = this.#rest.indexOf("\n"); end >= 0; end = this.#rest.indexOf("\n")) {
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + 1);
      this.#take(line);
    }
    return this.#rest.length <= this.#maxChars;
  }
}
