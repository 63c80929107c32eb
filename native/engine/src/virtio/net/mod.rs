//! virtio-net on tap devices: frames move between the tap and the guest's buffers in one system call each, with the header
//! that carries checksum and segmentation work. With several queue pairs there is a queue of tap and a control queue.
//! Where the host has vhost-net, its kernel can do that instead.

mod control;
mod datapath;
mod device;
mod features;
mod receive;
#[cfg(test)]
mod tests;
mod transmit;
mod vhost;

pub use datapath::Datapath;
pub use device::{Net, NetConfig, PAIRS_MAX};
