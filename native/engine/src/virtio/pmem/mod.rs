//! virtio-pmem: tells the guest where an image lies in its memory, which it then reads without a request. Nothing is ever
//! written there, so a request to flush has nothing to do.

mod device;
#[cfg(test)]
mod tests;

pub use device::Pmem;
