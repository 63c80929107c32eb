//! The starting points of a walk, and how metadata is asked for.

use super::super::piece::Piece;
use super::super::writers::stamps_changes;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, FileType, OFlags, Statx, StatxFlags, statx};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use wire::entry::{Entry, EntryKind};

/// A starting point, open.
pub struct Anchor {
    pub path: Vec<u8>,
    pub directory: OwnedFd,
    pub stat: Statx,
    /// Whether fingerprints of this file system may be remembered.
    pub remember: bool,
}

impl Anchor {
    pub fn open(root: &Root, path: &CheckedPath) -> Result<Self, wire::Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let directory = root.open(path, flags).map_err(|errno| path.fault(why_not(root, path, errno), "walk"))?;
        let stat = look(directory.as_fd(), c"").map_err(|errno| path.fault(errno, "walk"))?;
        Ok(Self { path: path.absolute(), remember: stamps_changes(&directory), directory, stat })
    }

    /// The entry of the starting point itself.
    pub fn piece(&self) -> Piece {
        let mut piece = Piece::default();
        piece.push(&Entry {
            path: &self.path,
            kind: EntryKind::Directory,
            fingerprint: &[],
            size: 0,
            mode: (self.stat.stx_mode & 0o7777).into(),
            uid: self.stat.stx_uid,
            gid: self.stat.stx_gid,
        });
        piece
    }
}

/// With O_DIRECTORY the kernel says of a symbolic link only that it is no directory.
fn why_not(root: &Root, path: &CheckedPath, errno: Errno) -> Errno {
    let link = root.open(path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|link| look(link.as_fd(), c""));
    match link {
        Ok(stat) if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink => Errno::LOOP,
        _ => errno,
    }
}

/// The entry's own metadata; with an empty name the descriptor's.
pub fn look(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(directory, name, flags, StatxFlags::BASIC_STATS)
}

pub fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}
