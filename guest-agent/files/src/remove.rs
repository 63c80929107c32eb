//! Removing a name and, when asked, everything below it. Nothing is followed; a tree of any depth takes a bounded number
//! of descriptors, because what lies deep is moved up before it is emptied.

use crate::look::names;
use crate::parents::open_directory;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};
use rustix::io::Errno;
use std::os::fd::{AsFd, OwnedFd};
use wire::file_request::{FileSummary, RemoveRequest};
use wire::{ErrorCode, Fault};

/// Directories that are open below one another.
const DEPTH_MAX: usize = 24;
/// Names of a directory that are removed before it is read again.
const BATCH: usize = 1024;
/// Times that a directory is emptied while somebody fills it.
const ATTEMPTS: usize = 64;

/// Removes a file, a link itself, or a directory. `is_abandoned` is asked now and then. Errors: `NOT_FOUND`,
/// `NOT_EMPTY`, `DENIED`, `SYMLINK` (on the way), `BAD_ARGUMENT` (the root), `CANCELLED`.
pub fn remove(root: &Root, request: &RemoveRequest, is_abandoned: &dyn Fn() -> bool) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let fault = |errno| path.fault(errno, "remove");
    let (parent, name) = path.split().ok_or_else(|| Fault::bad_argument("the root cannot be removed"))?;
    let directory = open_directory(root, &parent, false).map_err(|error| match error.code {
        ErrorCode::NotFound => fault(Errno::NOENT),
        _ => error,
    })?;
    let mut removal = Removal { entries: 0, moved: 0, is_abandoned };
    let removed = match unlinkat(&directory, name, AtFlags::empty()) {
        // EPERM is what some file systems say of a directory; opening it tells.
        Err(Errno::ISDIR | Errno::PERM) if request.recursive => removal.tree(&directory, name),
        Err(Errno::ISDIR | Errno::PERM) => {
            unlinkat(&directory, name, AtFlags::REMOVEDIR).map_err(|errno| match errno {
                Errno::NOTDIR => Errno::PERM,
                other => other,
            })
        }
        result => result,
    };
    removed.map_err(|errno| match errno {
        Errno::CANCELED => Fault::new(ErrorCode::Cancelled, "the host has lost interest"),
        errno => fault(errno),
    })?;
    Ok(FileSummary { size: 0, entries: removal.entries + 1 })
}

struct Removal<'a> {
    entries: u64,
    /// Directories that were moved up, for their names.
    moved: u64,
    is_abandoned: &'a dyn Fn() -> bool,
}

impl Removal<'_> {
    /// Removes the directory `name` and everything in it.
    fn tree(&mut self, parent: &OwnedFd, name: &[u8]) -> Result<(), Errno> {
        let top = open(parent, name)?;
        for _ in 0..ATTEMPTS {
            self.empty(&top, &top, 0)?;
            match unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Err(Errno::NOTEMPTY | Errno::EXIST) => continue,
                result => return result,
            }
        }
        Err(Errno::NOTEMPTY)
    }

    /// Removes everything in `directory`. What is too deep is moved to `top`, which is read again until it is empty.
    fn empty(&mut self, directory: &OwnedFd, top: &OwnedFd, depth: usize) -> Result<(), Errno> {
        loop {
            // A fresh descriptor, because a directory is read once through one.
            let names = names(open(directory, b".")?.as_fd(), BATCH)?;
            if names.is_empty() {
                return Ok(());
            }
            for name in &names {
                if (self.is_abandoned)() {
                    return Err(Errno::CANCELED);
                }
                match unlinkat(directory, name.as_slice(), AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(Errno::ISDIR | Errno::PERM) if depth < DEPTH_MAX => {
                        let inner = open(directory, name).map_err(not_a_directory)?;
                        self.empty(&inner, top, depth + 1)?;
                        match unlinkat(directory, name.as_slice(), AtFlags::REMOVEDIR) {
                            // Filled again meanwhile: the next pass sees it.
                            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY | Errno::EXIST) => {}
                            Err(errno) => return Err(errno),
                        }
                    }
                    Err(Errno::ISDIR | Errno::PERM) => self.move_up(directory, name, top)?,
                    Err(errno) => return Err(errno),
                }
                self.entries += 1;
            }
        }
    }

    fn move_up(&mut self, directory: &OwnedFd, name: &[u8], top: &OwnedFd) -> Result<(), Errno> {
        loop {
            self.moved += 1;
            let fresh = format!(".fluxvm-{:016x}.tmp", self.moved);
            match renameat(directory, name, top, &fresh) {
                // Somebody has that name; another one is tried.
                Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) if self.moved < u64::MAX => continue,
                result => return result,
            }
        }
    }
}

fn open(directory: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    openat(directory, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

/// What could not be unlinked and is no directory may not be removed.
fn not_a_directory(errno: Errno) -> Errno {
    if errno == Errno::NOTDIR { Errno::PERM } else { errno }
}
