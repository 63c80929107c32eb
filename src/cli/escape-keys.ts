// The keys by which a user leaves a shell whose far side does not answer: `~.` at the beginning of a line, as in ssh.

const NEWLINE = 0x0a;
const RETURN = 0x0d;
const TILDE = 0x7e;
const DOT = 0x2e;

export interface Typed {
  /** What is for the shell. */
  readonly bytes: Uint8Array;
  /** The user wants to leave; what follows is dropped. */
  readonly isLeaving: boolean;
}

export class EscapeKeys {
  #isAtLineStart = true;
  #hasTilde = false;

  /** Takes what was typed; a tilde that may begin an escape is held back until the next key. */
  take(typed: Uint8Array): Typed {
    const bytes: number[] = [];
    for (const byte of typed) {
      if (this.#hasTilde) {
        this.#hasTilde = false;
        if (byte === DOT) return { bytes: Uint8Array.from(bytes), isLeaving: true };
        // `~~` is one tilde.
        if (byte !== TILDE) bytes.push(TILDE);
      } else if (byte === TILDE && this.#isAtLineStart) {
        this.#hasTilde = true;
        this.#isAtLineStart = false;
        continue;
      }
      bytes.push(byte);
      this.#isAtLineStart = byte === NEWLINE || byte === RETURN;
    }
    return { bytes: Uint8Array.from(bytes), isLeaving: false };
  }
}
