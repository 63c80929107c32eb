//! How much room a tree takes: allocated blocks, as the file system counts them, each hard-linked file once.

use super::tree::{Path, Place, Visitor, open_root, walk};
use rustix::fs::Stat;
use rustix::io::Result;
use std::collections::HashSet;
use std::ffi::CStr;

const BLOCK_BYTES: u64 = 512;

/// What a tree takes.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Size {
    /// Allocated bytes, the root directory's included.
    pub bytes: u64,
    /// Entries below the root.
    pub entries: u32,
}

#[derive(Default)]
struct Meter {
    bytes: u64,
    linked: HashSet<(u64, u64)>,
}

impl Meter {
    fn add(&mut self, stat: &Stat) {
        self.bytes = self.bytes.saturating_add(stat.st_blocks.cast_unsigned().saturating_mul(BLOCK_BYTES));
    }
}

impl Visitor for Meter {
    fn enter(&mut self, _path: &Path, stat: &Stat) -> Result<()> {
        self.add(stat);
        Ok(())
    }

    fn entry(&mut self, _place: &Place<'_>, stat: &Stat) -> Result<()> {
        if stat.st_nlink == 1 || self.linked.insert((stat.st_dev, stat.st_ino)) {
            self.add(stat);
        }
        Ok(())
    }

    fn leave(&mut self, _path: &Path, _stat: &Stat) -> Result<()> {
        Ok(())
    }
}

/// Measures the tree at `path`. `TOOBIG`: more than `entries_max` entries.
pub fn measure(path: &CStr, entries_max: u32) -> Result<Size> {
    let root = open_root(path)?;
    let mut meter = Meter::default();
    let entries = walk(&root, entries_max, &mut meter)?;
    Ok(Size { bytes: meter.bytes, entries })
}
