// Makes text that came from a sandbox safe to print: nothing in it may move the cursor, colour the screen or hide.

/** Control characters, and characters that reorder or hide text. */
const UNSAFE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Cs}\p{Co}\p{Cn}]/u;
const UNSAFE_ALL = new RegExp(UNSAFE.source, "gu");
const NAMED: Readonly<Record<string, string>> = { "\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\", '"': '\\"' };

/** One line of text with every unsafe character written as an escape. */
export function printable(text: string): string {
  return text.replace(UNSAFE_ALL, escapeCharacter);
}

/**
 * A file name given as bytes. A plain name is shown as it is; any other in double quotes, with `\n`, `\xff` (a byte
 * that is not UTF-8) or `\u{202e}`, so that two names never look the same.
 */
export function printableName(name: Uint8Array): string {
  const text = decodeStrict(name);
  if (text !== null && !/["\\]/.test(text) && !UNSAFE.test(text) && text === text.trim()) return text;
  if (text !== null) return `"${text.replace(/["\\]/g, escapeCharacter).replace(UNSAFE_ALL, escapeCharacter)}"`;
  return `"${[...Buffer.from(name).toString("latin1")].map(escapeByte).join("")}"`;
}

function decodeStrict(bytes: Uint8Array): string | null {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return null;
  }
}

function escapeCharacter(character: string): string {
  const named = NAMED[character];
  if (named !== undefined) return named;
  const code = character.codePointAt(0) ?? 0;
  return code < 0x80 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u{${code.toString(16)}}`;
}

function escapeByte(byte: string): string {
  const code = byte.charCodeAt(0);
  if (NAMED[byte] !== undefined) return NAMED[byte];
  return code >= 0x20 && code < 0x7f ? byte : `\\x${code.toString(16).padStart(2, "0")}`;
}
