//! Directories above a name: opened, and made where they are missing.

use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fchmod, mkdirat, openat, statat};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use wire::Fault;

const PARENT_MODE: u32 = 0o755;

/// Opens the directory `path`, making what is missing one component at a time when `make` says so. Errors:
/// `NOT_FOUND`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `NO_SPACE`.
pub fn open_directory(root: &Root, path: &CheckedPath, make: bool) -> Result<OwnedFd, Fault> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match root.open(path, flags) {
        Err(Errno::NOENT) if make => {}
        result => return result.map_err(|errno| path.fault(errno, "open")),
    }
    make_directory(root, path, PARENT_MODE)?;
    root.open(path, flags).map_err(|errno| path.fault(errno, "open"))
}

/// Makes the directory `path` with exactly `mode`, and its parents; one that is there already stays as it is, and says
/// `false`. Errors as of [`open_directory`].
pub fn make_directory(root: &Root, path: &CheckedPath, mode: u32) -> Result<bool, Fault> {
    let Some((above, name)) = path.split() else { return Ok(false) };
    let directory = open_directory(root, &above, true)?;
    match mkdirat(&directory, name, Mode::from_raw_mode(mode)) {
        Ok(()) => {
            // The caller's umask may have taken bits away.
            let made = openat(&directory, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            let _ = made.and_then(|made| fchmod(made, Mode::from_raw_mode(mode)));
            Ok(true)
        }
        Err(Errno::EXIST) => {
            let stat =
                statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW).map_err(|errno| path.fault(errno, "make"))?;
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => Ok(false),
                FileType::Symlink if root.refuses_links() => Err(path.fault(Errno::LOOP, "make")),
                FileType::Symlink => {
                    let opened = root.open(path, OFlags::PATH | OFlags::DIRECTORY);
                    opened.map(|_| false).map_err(|errno| path.fault(errno, "make"))
                }
                _ => Err(path.fault(Errno::NOTDIR, "make")),
            }
        }
        Err(errno) => Err(path.fault(errno, "make")),
    }
}
