// Puts paths of any bytes and the listing script together into commands that a guest's shell can run.
import listing from "./listing.sh" with { type: "text" };

/** Below what a guest takes as one argument (128 KiB), script included. */
const PATHS_MAX_BYTES = 64 * 1024;
const WORDS_AROUND_A_PATH_BYTES = 64;

/** What `listing.sh` exits with before it has listed anything. */
export const EXIT = { missing: 40, notDirectory: 41, link: 42, denied: 43, noTools: 44 } as const;

/** `portable` does without GNU tools even if the guest has them. */
export type Flavour = "best" | "portable";

/** The command that lists `paths`. */
export function listingCommand(paths: readonly Uint8Array[], flavour: Flavour): string {
  const adding = paths.map((path) => `p=$(printf '%bx' '${escaped(path)}'); set -- "$@" "\${p%x}"`);
  return [
    "LC_ALL=C; PATH=${PATH:-/usr/sbin:/usr/bin:/sbin:/bin}; export LC_ALL PATH",
    "set --",
    ...adding,
    `flavour=${flavour}`,
    withoutComments(listing),
  ].join("\n");
}

/** Splits paths so that each command stays small enough. */
export function batches(paths: readonly Uint8Array[]): Uint8Array[][] {
  const all: Uint8Array[][] = [];
  let size = Number.POSITIVE_INFINITY;
  for (const path of paths) {
    const cost = escaped(path).length + WORDS_AROUND_A_PATH_BYTES;
    if (size + cost > PATHS_MAX_BYTES) {
      all.push([]);
      size = 0;
    }
    all.at(-1)?.push(path);
    size += cost;
  }
  return all;
}

/**
 * For `printf %b`: letters, digits and a few marks as they are, every other byte in octal, so that nothing of it means
 * anything to a shell. The path becomes relative to the root: `/a/b` is `./a/b`, and `/` is `.`.
 */
function escaped(path: Uint8Array): string {
  const bytes = path.length === 1 ? Buffer.from(".") : Buffer.concat([Buffer.from("."), path]);
  let text = "";
  for (const byte of bytes) {
    const char = String.fromCharCode(byte);
    text += /[A-Za-z0-9/._-]/.test(char) ? char : `\\0${byte.toString(8).padStart(3, "0")}`;
  }
  return text;
}

function withoutComments(script: string): string {
  return script.replace(/^#.*\n/gm, "");
}
