//! A file system of a few pages that is mounted nowhere: its files run out of room when a story says so.

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use rustix::mount::{fsconfig_create, fsconfig_set_string, fsmount, fsopen};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

const PAGES: u64 = 32;
const PAGE_BYTES: u64 = 4096;

/// The file system. It is gone when its files are.
pub struct Room {
    root: OwnedFd,
    /// What else takes room there.
    filler: File,
}

impl Room {
    /// Nothing where one may not mount.
    #[must_use]
    pub fn new() -> Option<Self> {
        let system = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).ok()?;
        fsconfig_set_string(&system, "size", (PAGES * PAGE_BYTES).to_string()).ok()?;
        fsconfig_create(&system).ok()?;
        let root = fsmount(&system, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty()).ok()?;
        let filler = file(&root, OFlags::APPEND);
        Some(Self { root, filler })
    }

    /// A file there.
    ///
    /// # Panics
    /// When the host has no descriptors left, as everywhere here.
    #[must_use]
    pub fn file(&self, bytes: u64) -> File {
        let file = file(&self.root, OFlags::empty());
        file.set_len(bytes).expect("a size");
        file
    }

    /// Takes all room but so many pages, or those that are there.
    ///
    /// # Panics
    /// When a file cannot be made smaller.
    pub fn leave(&self, pages: u64) {
        while (&self.filler).write(&[1; PAGE_BYTES as usize]).is_ok() {}
        let taken = self.filler.metadata().expect("a size").len();
        self.filler.set_len(taken.saturating_sub(pages * PAGE_BYTES)).expect("smaller");
    }

    /// Gives all room back that others do not take.
    ///
    /// # Panics
    /// When a file cannot be made smaller.
    pub fn make(&self) {
        self.filler.set_len(0).expect("smaller");
    }
}

fn file(root: &OwnedFd, more: OFlags) -> File {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC | more;
    File::from(openat(root, ".", flags, Mode::RUSR | Mode::WUSR).expect("a file"))
}
