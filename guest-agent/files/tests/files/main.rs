//! The crate on real trees of this machine's disk.

mod manifest;
mod operations;
mod tree;
