// Finds and loads the host library, once and only when something needs it, and never closes it. A library whose schema
// differs from ours is refused before anything else of it is called; the engine's library is loaded here, too.
import { dlopen, type FFIFunction, type Library } from "bun:ffi";
import { existsSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { ensureEmbedded, requireTrusted } from "./embedded.ts";
import { hostSymbols } from "./host/symbols.ts";
import { ABI_HASH } from "./layout/host.ts";

const LIBRARY_NAME = "libfluxvm_host.so";
/** Names the library explicitly; for development. */
const PATH_VARIABLE = "FLUXVM_HOST_LIBRARY";

export type HostLibrary = Library<typeof hostSymbols>["symbols"];

let preparedPath: string | null = null;
let loaded: HostLibrary | null = null;

/**
 * Says which embedded file holds the library: `file` is what `import … with { type: "file" }` gave. From a compiled
 * binary it is extracted below `directory` (see `ensureEmbedded`). Call before the first use of anything in `ffi/host`.
 * Rejects with `CONFIG_INVALID` when the directory can be written by others.
 */
export async function prepareHostLibrary(file: string, directory: string): Promise<void> {
  preparedPath = isEmbedded(file)
    ? await ensureEmbedded({ file, directory, name: LIBRARY_NAME, executable: true })
    : file;
}

/** The exports of the library. Throws when it cannot be found or has another schema. */
export function hostLibrary(): HostLibrary {
  loaded ??= load();
  return loaded;
}

function load(): HostLibrary {
  return openLibrary(locate(), hostSymbols, (symbols) => symbols.fluxvm_host_abi_hash(), ABI_HASH);
}

/** Loads a library for the life of the process. Throws when it cannot be loaded or has another schema than `expected`. */
export function openLibrary<const Symbols extends Record<string, FFIFunction>>(
  path: string,
  symbols: Symbols,
  hashOf: (symbols: Library<Symbols>["symbols"]) => bigint,
  expected: bigint,
): Library<Symbols>["symbols"] {
  const library = dlopen(path, symbols);
  const found = BigInt(hashOf(library.symbols));
  if (found !== expected) {
    throw new Error(
      `${path} was built from another version (schema ${found.toString(16)}, expected ${expected.toString(16)})`,
    );
  }
  return library.symbols;
}

/** Explicit path, prepared file, beside the executable, build tree: the first that exists. */
function locate(): string {
  const explicit = process.env[PATH_VARIABLE];
  if (explicit !== undefined && explicit !== "") return explicit;
  if (preparedPath !== null) return preparedPath;
  const beside = join(dirname(process.execPath), LIBRARY_NAME);
  if (existsSync(beside)) {
    requireTrusted(beside, "file");
    return beside;
  }
  if (!isEmbedded(import.meta.url)) {
    const built = fileURLToPath(new URL(`../native/target/release/${LIBRARY_NAME}`, import.meta.url));
    if (existsSync(built)) return built;
  }
  throw new Error(`${LIBRARY_NAME} is missing; build it with: cargo build --release --manifest-path native/Cargo.toml`);
}

function isEmbedded(location: string): boolean {
  return location.includes("/$bunfs/");
}
