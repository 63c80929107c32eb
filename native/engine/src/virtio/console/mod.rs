//! The console: one port. What the guest writes goes to a log with a bound and to whoever is connected; what they type goes
//! to the guest. Nobody who does not read can hold the guest up.

mod client;
mod device;
mod log;
#[cfg(test)]
mod tests;

pub use device::{Console, ConsoleOptions};
pub use log::LogFile;
