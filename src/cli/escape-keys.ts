// The keys by which a user at a shell talks to this program instead, as in ssh: a tilde at the beginning of a line and what
// follows it.

const NEWLINE = 0x0a;
const RETURN = 0x0d;
const TILDE = 0x7e;
const DOT = 0x2e;
const QUESTION_MARK = 0x3f;

export const ESCAPE_HELP = "~.  leaves and ends the shell\n~?  this help\n~~  one tilde\n(after a new line only)\n";

export interface Typed {
  /** What is for the shell. */
  readonly bytes: Uint8Array;
  /** The user wants to leave; what follows is dropped. */
  readonly isLeaving: boolean;
  /** The user wants to know the keys. */
  readonly wantsHelp: boolean;
}

export class EscapeKeys {
  #isAtLineStart = true;
  #hasTilde = false;

  /** Takes what was typed; a tilde that may begin an escape is held back until the next key. */
  take(typed: Uint8Array): Typed {
    const bytes: number[] = [];
    let wantsHelp = false;
    for (const byte of typed) {
      if (this.#hasTilde) {
        this.#hasTilde = false;
        if (byte === DOT) return { bytes: Uint8Array.from(bytes), isLeaving: true, wantsHelp };
        if (byte === QUESTION_MARK) {
          wantsHelp = true;
          this.#isAtLineStart = true;
          continue;
        }
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
    return { bytes: Uint8Array.from(bytes), isLeaving: false, wantsHelp };
  }
}
