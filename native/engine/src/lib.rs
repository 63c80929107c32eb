//! The engine: a KVM virtual machine monitor for Linux guests. Unsafe code is not allowed here; system calls that need it
//! are in `fluxvm-sys`.

#![forbid(unsafe_code)]

pub mod arch;
pub mod bus;
pub mod devices;
pub mod error;
pub mod machine;
pub mod memory;
pub mod vcpu;
pub mod virtio;
