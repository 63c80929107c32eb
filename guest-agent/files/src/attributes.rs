//! Changing what belongs to a name and is not content: mode, times, and the size of a file. A link is never followed.

use crate::root::{CheckedPath, Root};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, chmod, chmodat, fchmod, fstat, ftruncate,
    utimensat,
};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use wire::Fault;
use wire::file_request::{FileSummary, SetAttributesRequest};

/// Sets what `request` names, the size first and the times last. Errors: `NOT_FOUND`, `NOT_REGULAR` (a size of something
/// else than a file), `NOT_DIRECTORY`, `SYMLINK`, `DENIED`, `NO_SPACE`, `TOO_LARGE`, `BAD_ARGUMENT`.
pub fn set(root: &Root, request: &SetAttributesRequest) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let fault = |errno| path.fault(errno, "change");
    let found = root.open(&path, OFlags::PATH | OFlags::NOFOLLOW).map_err(fault)?;
    let stat = fstat(&found).map_err(fault)?;
    if FileType::from_raw_mode(stat.st_mode) == FileType::Symlink {
        return Err(fault(Errno::LOOP));
    }
    if let Some(size) = request.size {
        resize(root, &path, &stat, size).map_err(fault)?;
    }
    if let Some(mode) = request.mode {
        set_mode(root, &path, &found, &stat, Mode::from_raw_mode(mode & 0o7777)).map_err(fault)?;
    }
    if request.accessed_ms.is_some() || request.modified_ms.is_some() {
        let times = Timestamps { last_access: time(request.accessed_ms), last_modification: time(request.modified_ms) };
        utimensat(&found, "", &times, AtFlags::EMPTY_PATH).map_err(fault)?;
    }
    Ok(FileSummary { size: 0, entries: 1 })
}

fn resize(root: &Root, path: &CheckedPath, stat: &Stat, size: u64) -> Result<(), Errno> {
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Errno::ISDIR);
    }
    ftruncate(reopened(root, path, stat, OFlags::WRONLY)?, size)
}

/// A descriptor without access changes no mode by itself: the kernel's own call for that is young, its other name needs
/// `/proc`, and a descriptor with access needs a right that the mode may not give.
fn set_mode(root: &Root, path: &CheckedPath, found: &OwnedFd, stat: &Stat, mode: Mode) -> Result<(), Errno> {
    match chmodat(found, "", mode, AtFlags::EMPTY_PATH | AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {}
        result => return result,
    }
    match chmod(format!("/proc/self/fd/{}", found.as_fd().as_raw_fd()), mode) {
        Err(Errno::NOENT | Errno::NOTDIR) => fchmod(reopened(root, path, stat, OFlags::RDONLY)?, mode),
        result => result,
    }
}

/// Opens what `stat` is about; ENOENT when something else has its name now.
fn reopened(root: &Root, path: &CheckedPath, stat: &Stat, access: OFlags) -> Result<OwnedFd, Errno> {
    let opened = root.open(path, access | OFlags::NOFOLLOW | OFlags::NONBLOCK)?;
    let now = fstat(&opened)?;
    if (now.st_dev, now.st_ino) == (stat.st_dev, stat.st_ino) { Ok(opened) } else { Err(Errno::NOENT) }
}

fn time(ms: Option<u64>) -> Timespec {
    match ms {
        None => Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(ms) => {
            Timespec { tv_sec: i64::try_from(ms / 1000).unwrap_or(i64::MAX), tv_nsec: ((ms % 1000) * 1_000_000) as i64 }
        }
    }
}
