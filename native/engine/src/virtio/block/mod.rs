//! The block device: requests of the guest become I/O on the layers of its disk, straight between files and guest memory.

mod device;
mod file_io;
mod request;
mod space;
#[cfg(test)]
mod tests;

pub use device::{Block, BlockOptions};
pub use file_io::IoMode;
