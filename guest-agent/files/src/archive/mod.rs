//! Tar archives of trees, both ways, without a copy of anything in memory or on disk.

mod pack;
mod unpack;

pub use pack::pack;
pub use unpack::unpack;
