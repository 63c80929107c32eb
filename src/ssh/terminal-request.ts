// What a client says of its terminal and its environment, taken only as far as it makes sense.
import { limits } from "../config/limits.ts";
import type { TerminalSize } from "../contracts/executions.ts";

const DEFAULT_SIZE: TerminalSize = { cols: 80, rows: 24 };
const SIDE_MAX = 65_535;
const TERM = /^[A-Za-z0-9][A-Za-z0-9+._-]{0,63}$/;
/** Language and the like; what else a client sends could change what programs do behind its user's back. */
const NAME = /^(LANG|LANGUAGE|LC_[A-Z]+|TERM|COLORTERM|NO_COLOR)$/;

export interface TerminalRequest {
  readonly size: TerminalSize;
  /** Value of `TERM`. */
  readonly term: string;
}

/** The terminal of a `pty-req`, as ssh2 hands it over. A side of 0 is one that the client does not know. */
export function terminalRequest(data: unknown): TerminalRequest {
  const { term, cols, rows } = data as { readonly term: string; readonly cols: number; readonly rows: number };
  return { size: terminalSize({ cols, rows }), term: TERM.test(term) ? term : "xterm" };
}

/** The size of a `window-change` or a `pty-req`. */
export function terminalSize(data: unknown): TerminalSize {
  const { cols, rows } = data as TerminalSize;
  return { cols: side(cols, DEFAULT_SIZE.cols), rows: side(rows, DEFAULT_SIZE.rows) };
}

function side(asked: number, unknown: number): number {
  return asked === 0 ? unknown : Math.min(asked, SIDE_MAX);
}

/** Whether a variable of an `env` request is taken over. */
export function takesVariable(data: unknown): data is { readonly name: string; readonly value: string } {
  const { name, value } = data as { readonly name: string; readonly value: string };
  return NAME.test(name) && value.length <= limits.sshTextMaxChars && !value.includes("\0");
}
