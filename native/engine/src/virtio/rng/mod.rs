//! The entropy device: fills what the guest offers from the host's own source, within a limit. Without it a guest may wait
//! for randomness at boot for ever.

mod device;
#[cfg(test)]
mod tests;

pub use device::Rng;
