//! vCPUs: one thread each, and the gate at which all of them come to rest.

mod gate;
mod thread;

pub use gate::{Gate, Want};
pub use thread::{Buses, End, Vcpu};
