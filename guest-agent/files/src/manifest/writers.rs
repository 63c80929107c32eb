//! Whether a file can change without its timestamps moving. A store through a shared mapping moves them only when it
//! first touches a clean page, so a page that was dirty when its file was hashed can change unnoticed. A file that
//! nobody has open for writing, which a mapping counts as, must be opened anew first, and then its first store is seen.

use rustix::fs::{FsWord, fstatfs};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::Once;

const EXT4: FsWord = 0xef53;
const XFS: FsWord = 0x5846_5342;
const BTRFS: FsWord = 0x9123_683e;
const F2FS: FsWord = 0xf2f5_2010;
const OVERLAY: FsWord = 0x794c_7630;

/// Whether the kernel that runs us stamps every change to this file system's files, by its own clock, first stores
/// through mappings included. Not so: memory file systems (pages are writable from the first read on), and anything
/// that another machine may change (network, FUSE, virtiofs).
pub fn stamps_changes(directory: impl AsFd) -> bool {
    fstatfs(directory).is_ok_and(|stat| matches!(stat.f_type, EXT4 | XFS | BTRFS | F2FS | OVERLAY))
}

/// Takes a read lease on `file`, which is open for reading only, and says whether it was granted. The kernel grants it
/// just when nobody has the file open for writing or mapped from such an opening. While it is held, whoever opens the
/// file for writing waits; closing `file` gives it back.
pub fn lease_without_writers(file: BorrowedFd<'_>) -> bool {
    static SIGNAL: Once = Once::new();
    SIGNAL.call_once(expect_signals);
    lease(file, libc::F_RDLCK)
}

/// Gives a lease back while `file` stays open.
pub fn give_lease_back(file: BorrowedFd<'_>) {
    lease(file, libc::F_UNLCK);
}

#[allow(unsafe_code)]
fn lease(file: BorrowedFd<'_>, kind: libc::c_int) -> bool {
    // SAFETY: this fcntl takes two integers, and the descriptor is open for as long as it is borrowed.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
}

/// Somebody who opens a file for writing in the very moment of its lease has SIGIO sent to us, which would end this
/// process. A handler is not inherited by programs that are started, as ignoring the signal would be.
#[allow(unsafe_code)]
fn expect_signals() {
    extern "C" fn do_nothing(_: libc::c_int) {}
    // SAFETY: the structure is plain data for which zero is valid, and the handler does nothing at all.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = do_nothing as extern "C" fn(libc::c_int) as usize;
        action.sa_flags = libc::SA_RESTART;
        libc::sigaction(libc::SIGIO, &action, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};

    #[test]
    fn writers_are_seen_and_readers_are_not() {
        let path = std::env::temp_dir().join(format!("writers-{}", std::process::id()));
        std::fs::write(&path, "content").unwrap();
        let file = File::open(&path).unwrap();
        let _reader = File::open(&path).unwrap();
        assert!(lease_without_writers(file.as_fd()));
        give_lease_back(file.as_fd());
        // With a lease still held, each opening for writing would wait for it to be broken.
        let started = std::time::Instant::now();
        let writer = OpenOptions::new().append(true).open(&path).unwrap();
        assert!(!lease_without_writers(file.as_fd()));
        drop(writer);
        assert!(lease_without_writers(file.as_fd()));
        drop(file);
        OpenOptions::new().write(true).open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(started.elapsed().as_secs() < 5);
    }
}
