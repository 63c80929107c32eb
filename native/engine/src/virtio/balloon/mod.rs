//! The balloon: the host asks for memory back, the guest gives pages, and tells about pages that it does not use anyway.

mod control;
mod device;
#[cfg(test)]
mod tests;

pub use control::{BalloonControl, GUEST_BYTES_MIN, Statistics, TargetError};
pub use device::Balloon;
