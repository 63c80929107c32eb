//! File operations and manifests, synchronous and with the caller's own rights, relative to a root directory
//! descriptor. The tree may be hostile: paths are resolved by the kernel, nothing blocks on a special file, and
//! every amount has a bound.

#![deny(unsafe_code)]

mod archive;
mod attributes;
mod beside;
mod create;
mod errno;
mod links;
mod look;
mod manifest;
mod parents;
mod perform;
mod read;
mod remove;
mod rename;
mod resolve;
mod root;
mod watch;
mod write;

pub use manifest::{Manifests, WalkReport};
pub use perform::{perform, perform_upload};
pub use read::{OpenedFile, open_file};
pub use root::{Links, Root};
pub use wire::chunks;
pub use write::write_file;
