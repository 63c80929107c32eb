//! Copies of this process, and which descriptors it has.

use rustix::io::{Errno, Result};
use rustix::process::Pid;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Who returns from [`fork`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forked {
    /// The new process.
    Child,
    /// The one that was there, with the new one's pid.
    Parent(Pid),
}

/// Copies this process, which must have one thread: locks that another one held would never be released in the copy.
///
/// # Errors
/// `BUSY` when there are other threads, or what the kernel says.
pub fn fork() -> Result<Forked> {
    let threads = std::fs::read_dir("/proc/self/task").map_err(|_| Errno::IO)?.count();
    if threads != 1 {
        return Err(Errno::BUSY);
    }
    // SAFETY: this is the only thread, so that the copy has everything that it may use in a good state.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => Ok(Forked::Child),
        _ => Pid::from_raw(pid.max(0)).map(Forked::Parent).ok_or_else(last_error),
    }
}

/// A copy of the descriptor of that number, whoever owns it, which a program that is started later has not got.
///
/// # Errors
/// `BADF` when nothing is open under it.
pub fn duplicate(descriptor: RawFd) -> Result<OwnedFd> {
    if descriptor < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is only looked up by the kernel, which refuses one that is not open.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(last_error());
    }
    // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes every descriptor from 3 on that is not in `keep`.
///
/// # Errors
/// `NOSYS` before Linux 5.9.
///
/// # Safety
/// Nobody may use a descriptor that is not kept, nor close it again.
pub unsafe fn close_others(keep: &[RawFd]) -> Result<()> {
    let mut keep: Vec<u32> = keep.iter().filter_map(|fd| u32::try_from(*fd).ok()).filter(|fd| *fd > 2).collect();
    keep.sort_unstable();
    let mut from = 3;
    for fd in keep {
        if fd > from {
            close_range(from, fd - 1)?;
        }
        from = from.max(fd + 1);
    }
    close_range(from, u32::MAX)
}

fn close_range(first: u32, last: u32) -> Result<()> {
    // SAFETY: the call takes integers; who calls `close_others` answers for the descriptors.
    let status = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if status == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> Errno {
    Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)
}
