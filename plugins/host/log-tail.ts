// The end of what a virtual machine said: on its console, and what its program complained of. The machine's own user may write
// both, so no link is followed, little is read, and what comes out is one printable line.
import { constants } from "node:fs";
import { open } from "node:fs/promises";

const CONSOLE_TAIL_BYTES = 64 * 1024;
const COMPLAINT_MAX_BYTES = 500;
const LINE_MAX_CHARS = 300;

/** The last line of a console that says something, or that has `words`: from those on. Null when there is none. */
export async function lastLineOf(path: string, words = ""): Promise<string | null> {
  const lines = (await tailOf(path, CONSOLE_TAIL_BYTES)).split(/[\r\n]+/).map(printable);
  const found = lines.findLast((line) => line !== "" && line.includes(words));
  return found === undefined ? null : found.slice(found.indexOf(words)).slice(0, LINE_MAX_CHARS);
}

/** Why a program ended, as it said itself. */
export async function complaintOf(path: string, program: string): Promise<string> {
  const tail = printable((await tailOf(path, COMPLAINT_MAX_BYTES)).replaceAll(/[\r\n]+/g, " "));
  return tail === "" ? `${program} was killed` : `${program} ended: ${tail}`;
}

async function tailOf(path: string, maxBytes: number): Promise<string> {
  const file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK).catch(() => null);
  if (file === null) return "";
  try {
    const found = await file.stat();
    if (!found.isFile()) return "";
    const tail = Buffer.alloc(maxBytes);
    const { bytesRead } = await file.read(tail, 0, tail.length, Math.max(0, found.size - tail.length));
    return tail.toString("latin1", 0, bytesRead);
  } finally {
    await file.close();
  }
}

/** Without the sequences that move cursors and colour words; other bytes that are no ASCII become "?". */
export function printable(text: string): string {
  return text
    .replaceAll(/\x1b[[(][0-9;?]*[A-Za-z]/g, "")
    .replaceAll(/[^\x20-\x7e]/g, "?")
    .trim();
}
