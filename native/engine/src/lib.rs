//! The engine: a KVM virtual machine monitor for Linux guests. Unsafe code is not allowed here; system calls that need it
//! are in `fluxvm-sys`.

#![forbid(unsafe_code)]

pub mod virtio;
