// The exports of the engine library and nothing else. Names and order are those of `native/library/src/abi.rs`.
import type { FFIFunction } from "bun:ffi";

export const engineSymbols = {
  fluxvm_engine_abi_hash: { args: [], returns: "u64" },
  fluxvm_engine_start: { args: ["buffer", "buffer_length", "buffer"], returns: "i32" },
  fluxvm_engine_end: { args: ["i32"], returns: "i32" },
} as const satisfies Record<string, FFIFunction>;
