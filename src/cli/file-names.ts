// Names of files in a sandbox and on this host, as they are typed and shown.
import type { FileEntry } from "../../sdk/typescript/types.ts";
import { UsageError } from "./command.ts";
import { printableName } from "./escape.ts";

/** A path as typed: from the root of what the sandbox may write, with or without its first slash. */
export function sandboxFile(path: string): string {
  return path.startsWith("/") ? path : `/${path}`;
}

/** Three octal digits as a mode. Throws `UsageError`. */
export function octalMode(word: string | undefined): number | undefined {
  if (word === undefined) return undefined;
  if (!/^0?[0-7]{3}$/.test(word)) throw new UsageError("--mode takes three octal digits, such as 755");
  return Number.parseInt(word, 8);
}

/** One side of a copy: `SANDBOX:PATH`, where the colon comes before every slash, or a name on this host. */
export type Side =
  | { readonly kind: "sandbox"; readonly sandbox: string; readonly path: string }
  | { readonly kind: "local"; readonly path: string };

export function sideOf(word: string): Side {
  const match = /^([^/:]+):(.*)$/s.exec(word);
  if (match === null) return { kind: "local", path: word };
  return { kind: "sandbox", sandbox: match[1]!, path: sandboxFile(match[2]!) };
}

/** The exact bytes of a name: `base64` is there when they are not UTF-8. */
export function shownName(text: string, base64: string | undefined): string {
  return printableName(base64 === undefined ? new TextEncoder().encode(text) : Uint8Array.fromBase64(base64));
}

const KINDS: Readonly<Record<FileEntry["kind"], string>> = { file: "-", directory: "d", symlink: "l", other: "?" };
const BITS = ["---", "--x", "-w-", "-wx", "r--", "r-x", "rw-", "rwx"] as const;

/** As `ls` shows it. */
export function shownMode({ kind, mode }: Pick<FileEntry, "kind" | "mode">): string {
  return `${KINDS[kind]}${[6, 3, 0].map((shift) => BITS[(mode >> shift) & 7]).join("")}`;
}

/** With the target of a link. */
export function shownEntry(entry: FileEntry): string {
  const name = shownName(entry.name === "" ? "/" : entry.name, entry.name_base64);
  if (entry.symlink_target === undefined) return name;
  return `${name} -> ${shownName(entry.symlink_target, entry.symlink_target_base64)}`;
}
