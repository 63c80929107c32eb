//! Jobs on single files and directories: locks, reflinks, durability, preallocation, space, removal of busy directories.

use crate::handles::Handles;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, IFlags, Mode, OFlags, fallocate, flock, fstatfs, fsync,
    ioctl_ficlone, ioctl_getflags, ioctl_setflags, open, statfs, syncfs, unlinkat,
};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

static HANDLES: Handles<OwnedFd> = Handles::new();

const PRIVATE: Mode = Mode::from_raw_mode(0o600);
const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_MAX: Duration = Duration::from_millis(50);

/// Locks a file, made if missing. `AGAIN`: somebody else holds the lock.
pub fn lock(path: &CStr) -> Result<u32> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = open(path, flags, PRIVATE)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    HANDLES.insert(file)
}

/// Closes what a handle names; a lock goes with it.
pub fn close_handle(handle: u32) -> Result<()> {
    HANDLES.remove(handle).map(drop)
}

/// Makes `target`, which must not exist, share the blocks of `source`. A target that could not be shared is removed.
pub fn clone(source: &CStr, target: &CStr, mode: u32) -> Result<()> {
    let from = open(source, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
    let to = create(target, Mode::from_raw_mode(mode & 0o777))?;
    ioctl_ficlone(&to, &from).inspect_err(|_| discard(target))
}

/// Makes a file durable, or everything on its file system.
pub fn sync(path: &CStr, whole_file_system: bool) -> Result<()> {
    let file = open(path, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    if whole_file_system { syncfs(&file) } else { fsync(&file) }
}

/// Makes a file of `bytes` bytes whose blocks are all reserved, and syncs it. On failure no file is left. What cannot fit
/// is refused before anything is taken: a file system would fill up first and notice then.
pub fn allocate(path: &CStr, bytes: u64) -> Result<()> {
    let file = create(path, PRIVATE)?;
    let facts = fstatfs(&file).inspect_err(|_| discard(path))?;
    if bytes > facts.f_bavail.saturating_mul(facts.f_bsize.cast_unsigned()) {
        discard(path);
        return Err(Errno::NOSPC);
    }
    // Only copy-on-write file systems know this attribute; in-place writes keep the reservation valid there.
    if let Ok(flags) = ioctl_getflags(&file) {
        let _ = ioctl_setflags(&file, flags | IFlags::NOCOW);
    }
    fallocate(&file, FallocateFlags::empty(), 0, bytes).and_then(|()| fsync(&file)).inspect_err(|_| discard(path))
}

/// Type magic, total bytes, and bytes that are available to ordinary users.
pub fn file_system_facts(path: &CStr) -> Result<[u64; 3]> {
    let facts = statfs(path)?;
    let block = facts.f_bsize.cast_unsigned();
    Ok([facts.f_type.cast_unsigned(), facts.f_blocks.saturating_mul(block), facts.f_bavail.saturating_mul(block)])
}

/// Removes an empty directory; while it is busy, asks again until `timeout` has passed. Already gone is success.
pub fn remove_directory(path: &CStr, timeout: Duration) -> Result<()> {
    let deadline = Instant::now() + timeout;
    let mut pause = RETRY_FIRST;
    loop {
        match unlinkat(CWD, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY | Errno::NOTEMPTY) if Instant::now() < deadline => sleep(pause),
            Err(error) => return Err(error),
        }
        pause = (pause * 2).min(RETRY_MAX);
    }
}

fn create(path: &CStr, mode: Mode) -> Result<OwnedFd> {
    open(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW, mode)
}

/// The original error is what the caller needs; a file that cannot be removed is found again by its name.
fn discard(path: &CStr) {
    let _ = unlinkat(CWD, path, AtFlags::empty());
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CString;
    use std::fs;

    fn path_in(directory: &tempfile::TempDir, name: &str) -> CString {
        CString::new(directory.path().join(name).to_str().unwrap()).unwrap()
    }

    #[test]
    fn a_lock_excludes_until_its_handle_is_closed() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory, "lock");
        let handle = lock(&path).unwrap();

        assert_eq!(lock(&path), Err(Errno::AGAIN));
        close_handle(handle).unwrap();
        close_handle(lock(&path).unwrap()).unwrap();
    }

    #[test]
    fn an_allocation_that_does_not_fit_leaves_no_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory, "image");

        assert_eq!(allocate(&path, 1 << 60), Err(Errno::NOSPC));
        assert!(!directory.path().join("image").exists());
        allocate(&path, 1 << 20).unwrap();
        assert_eq!(allocate(&path, 1 << 20), Err(Errno::EXIST));
    }

    #[test]
    fn a_directory_that_stays_full_is_reported_after_the_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = path_in(&directory, "a");
        fs::create_dir_all(directory.path().join("a/b")).unwrap();
        let started = Instant::now();

        assert_eq!(remove_directory(&path, Duration::from_millis(30)), Err(Errno::NOTEMPTY));
        assert!(started.elapsed() >= Duration::from_millis(30));
        fs::remove_dir(directory.path().join("a/b")).unwrap();
        assert_eq!(remove_directory(&path, Duration::ZERO), Ok(()));
        assert_eq!(remove_directory(&path, Duration::ZERO), Ok(()));
    }
}
