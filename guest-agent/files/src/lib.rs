//! File operations and manifests, synchronous and with the caller's own rights, relative to a root directory
//! descriptor. The tree may be hostile: paths are resolved by the kernel, nothing blocks on a special file, and
//! every amount has a bound.

#![deny(unsafe_code)]

mod beside;
mod errno;
mod manifest;
mod read;
mod root;
mod write;

pub use manifest::{Manifests, WalkReport};
pub use read::{OpenedFile, open_file};
pub use root::{Links, Root};
pub use wire::chunks;
pub use write::write_file;
