//! A whole virtual machine: made from a description, driven through its life, ended by its guest or its host.

mod build;
mod lifecycle;
#[expect(clippy::module_inception, reason = "the noun of this folder")]
mod machine;
mod state;

pub use build::{Ends, MachineConfig};
pub use lifecycle::{Action, Lifecycle};
pub use machine::Machine;
