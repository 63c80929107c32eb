// The exports of the host library and nothing else. Names and order are those of `native/host/src/abi.rs`.
import type { FFIFunction } from "bun:ffi";

export const hostSymbols = {
  fluxvm_host_abi_hash: { args: [], returns: "u64" },
  fluxvm_host_channel_open: { args: ["buffer"], returns: "i32" },
  fluxvm_host_channel_close: { args: ["i32"], returns: "i32" },
  fluxvm_host_job_submit: { args: ["i32", "u32", "u64", "buffer", "buffer_length"], returns: "i32" },
  fluxvm_host_kvm_probe: { args: ["buffer", "usize"], returns: "i32" },
  fluxvm_host_landlock_abi: { args: [], returns: "i32" },
  fluxvm_host_process_runs: { args: ["i32", "u64"], returns: "i32" },
  fluxvm_host_process_signal: { args: ["i32", "u64", "i32"], returns: "i32" },
  fluxvm_host_peer_credentials: { args: ["i32", "buffer"], returns: "i32" },
  fluxvm_host_receive: { args: ["i32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_vsock_connect: { args: ["u32", "u32"], returns: "i32" },
} as const satisfies Record<string, FFIFunction>;
