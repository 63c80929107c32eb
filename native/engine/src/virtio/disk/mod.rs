//! What a disk of a guest is on the host: a stack of layers. The lowest is a raw file or an
//! image; each layer above holds what was
//! written since it was put on, so that a checkpoint freezes the top, a dry run throws it away, and nothing is copied.

mod layer;
mod map;
mod qcow2;
#[cfg(test)]
mod qcow2_tests;
mod stack;
#[cfg(test)]
mod tests;

pub use layer::{CLUSTER_BYTES, DiskError, Durability};
pub use stack::{Disk, DiskImage, ImageFormat, LAYERS_MAX, Run, SECTOR_BYTES, SharedDisk, Source};
