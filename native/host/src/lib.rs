//! The host library that the agent loads with bun:ffi: long system work on native threads with completion records, and
//! a few questions to the kernel that answer within microseconds. `abi` is the C face; everything else is safe code.
#![deny(unsafe_code)]

mod abi;
mod abi_bpf;
mod bpf;
mod channel;
mod descriptors;
mod facts;
mod handles;
mod jobs;
#[rustfmt::skip]
pub mod layout;
mod pool;
mod ring_reader;
mod wire;
