// Which keys reach the shell, and which make the user leave it.
import { expect, test } from "bun:test";
import { EscapeKeys } from "./escape-keys.ts";

/** `|` separates the pieces in which keys come. */
function type(keys: string): string {
  const escapes = new EscapeKeys();
  let seen = "";
  for (const piece of keys.split("|")) {
    const { bytes, isLeaving, wantsHelp } = escapes.take(Buffer.from(piece));
    seen += Buffer.from(bytes).toString();
    if (wantsHelp) seen += "<help>";
    if (isLeaving) return `${seen}<left>`;
  }
  return seen;
}

test.each([
  ["ls\r", "ls\r"],
  ["~.", "<left>"],
  ["~|.", "<left>"],
  ["ls\r~.rest", "ls\r<left>"],
  ["ls\n~|.", "ls\n<left>"],
  ["a~.", "a~."],
  ["cd ~|.", "cd ~."],
  ["~~.", "~."],
  ["~~~.", "~~."],
  ["~a", "~a"],
  ["~\r~.", "~\r<left>"],
  ["~", ""],
  ["\r~|~|.", "\r~."],
  ["~?", "<help>"],
  ["ls\r~|?~.", "ls\r<help><left>"],
  ["a~?", "a~?"],
])("%p gives %p", (keys, seen) => {
  expect(type(keys)).toBe(seen);
});
