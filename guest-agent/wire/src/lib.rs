//! The guest-agent protocol as types: version 1 (JSON lines), version 2 (frames of msgpack maps), credit
//! accounting, and every limit. No I/O here; `guest-agent/PROTOCOL.md` is the specification.

#![forbid(unsafe_code)]

pub mod chunks;
pub mod config_disk;
pub mod credit;
pub mod device;
pub mod entry;
pub mod execution;
pub mod fault;
pub mod file_entry;
pub mod file_request;
pub mod frame;
pub mod limits;
pub mod message;
pub mod port;
pub mod preamble;
pub mod request;
pub mod v1;

pub use fault::{ErrorCode, Fault};
