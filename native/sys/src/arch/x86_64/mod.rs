//! x86-64: the extended state of a vCPU, and a guest of a few of its instructions.

pub mod kvm_guest;
mod xsave;
