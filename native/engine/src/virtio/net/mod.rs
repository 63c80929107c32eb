//! virtio-net on tap devices: frames move between the tap and the guest's buffers in one system call each, with the header
//! that carries checksum and segmentation work. With several queue pairs there is a queue of tap and a control queue.

mod control;
mod device;
mod features;
mod receive;
#[cfg(test)]
mod tests;
mod transmit;

pub use device::{Net, NetConfig, PAIRS_MAX};
