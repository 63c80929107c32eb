// The exports of the host library and nothing else. Names are those of `native/host/src/abi.rs` and `abi_bpf.rs`.
import type { FFIFunction } from "bun:ffi";

export const hostSymbols = {
  fluxvm_host_abi_hash: { args: [], returns: "u64" },
  fluxvm_host_channel_open: { args: ["buffer"], returns: "i32" },
  fluxvm_host_channel_close: { args: ["i32"], returns: "i32" },
  fluxvm_host_job_submit: { args: ["i32", "u32", "u64", "buffer", "buffer_length"], returns: "i32" },
  fluxvm_host_kvm_probe: { args: ["buffer", "usize"], returns: "i32" },
  fluxvm_host_landlock_abi: { args: [], returns: "i32" },
  fluxvm_host_monotonic_ns: { args: [], returns: "u64" },
  fluxvm_host_process_runs: { args: ["i32", "u64"], returns: "i32" },
  fluxvm_host_process_signal: { args: ["i32", "u64", "i32"], returns: "i32" },
  fluxvm_host_receive: { args: ["i32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_send: { args: ["i32", "buffer", "usize", "buffer", "usize"], returns: "i32" },
  fluxvm_host_vsock_connect: { args: ["u32", "u32"], returns: "i32" },
  fluxvm_host_bpf_object_new: { args: ["buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_object_adjust: { args: ["u32", "buffer", "usize", "u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_object_text: { args: ["u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_object_take_map: { args: ["u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_object_take_program: { args: ["u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_map_facts: { args: ["u32", "buffer"], returns: "i32" },
  fluxvm_host_bpf_map_lookup: { args: ["u32", "buffer", "usize", "buffer", "usize", "u32"], returns: "i32" },
  fluxvm_host_bpf_map_update: { args: ["u32", "buffer", "usize", "buffer", "usize", "u32"], returns: "i32" },
  fluxvm_host_bpf_map_delete: { args: ["u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_map_update_batch: { args: ["u32", "buffer", "usize", "buffer", "usize", "u32"], returns: "i32" },
  fluxvm_host_bpf_map_delete_batch: { args: ["u32", "buffer", "usize"], returns: "i32" },
  fluxvm_host_bpf_map_read_batch: {
    args: ["u32", "buffer", "usize", "u32", "buffer", "usize", "buffer", "usize", "buffer"],
    returns: "i32",
  },
  fluxvm_host_bpf_program_facts: { args: ["u32", "buffer"], returns: "i32" },
  fluxvm_host_bpf_test_run: {
    args: ["u32", "buffer", "usize", "buffer", "usize", "buffer", "usize", "u32", "buffer"],
    returns: "i32",
  },
} as const satisfies Record<string, FFIFunction>;
