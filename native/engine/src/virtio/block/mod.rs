//! The block device: requests of the guest become I/O on the layers of its disk, straight between files and guest memory.

mod control;
mod device;
mod file_io;
mod request;
#[cfg(test)]
mod room_tests;
mod serving;
mod space;
#[cfg(test)]
mod tests;
mod waiting;

pub use control::BlockControl;
pub use device::{Block, BlockOptions};
pub use file_io::IoMode;
