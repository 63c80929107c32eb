// Loads the engine library, once for each path and only when a machine is to run in this process, and never closes it.
import type { Library } from "bun:ffi";
import { ABI_HASH } from "../layout/engine.ts";
import { openLibrary } from "../library.ts";
import { engineSymbols } from "./symbols.ts";

export type EngineLibrary = Library<typeof engineSymbols>["symbols"];

const loaded = new Map<string, EngineLibrary>();

/** The exports of the library at `path`. Throws when it cannot be loaded or has another schema. */
export function engineLibrary(path: string): EngineLibrary {
  const known = loaded.get(path);
  if (known !== undefined) return known;
  const library = openLibrary(path, engineSymbols, (symbols) => symbols.fluxvm_engine_abi_hash(), ABI_HASH);
  loaded.set(path, library);
  return library;
}
