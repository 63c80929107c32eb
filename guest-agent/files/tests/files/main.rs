//! The crate on real trees of this machine's disk.

mod archives;
mod arranging;
mod attributes;
mod manifest;
mod operations;
mod streams;
mod tree;
mod watches;
