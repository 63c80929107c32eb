//! The engine as a library that a program loads: a machine on threads of that program, with the same control socket that the
//! hypervisor's process has. `abi` is the C face; everything else is safe code.
#![deny(unsafe_code)]

pub mod abi;
#[rustfmt::skip]
pub mod layout;
mod machine;
mod machines;
