//! What depends on the processor's architecture. The rest of the engine uses only the names exported here.

#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
