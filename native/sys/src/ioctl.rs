//! The two shapes of ioctl that the kernel interfaces here use: a structure by reference and an integer by value.

use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

pub(crate) const fn request_number(direction: u32, group: u32, number: u32, size: usize) -> libc::Ioctl {
    ((direction << 30) | ((size as u32) << 16) | (group << 8) | number) as libc::Ioctl
}

pub(crate) const WRITE: u32 = 1;
pub(crate) const READ: u32 = 2;

/// Runs an ioctl whose argument is a structure that the kernel reads, writes or both.
///
/// # Safety
/// `T` must be the plain `repr(C)` structure that `request` expects on this descriptor, without references inside.
pub(crate) unsafe fn with_structure<T>(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: &mut T) -> Result<i32> {
    // SAFETY: the caller promises that `T` is what `request` expects; it is borrowed for the whole call.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(argument)) };
    result(status)
}

/// Runs an ioctl whose argument is an integer, or which ignores its argument.
pub(crate) fn with_integer(fd: BorrowedFd<'_>, request: libc::Ioctl, argument: u64) -> Result<i32> {
    // SAFETY: the argument is an integer by value, so the kernel touches no memory of ours.
    let status = unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) };
    result(status)
}

fn result(status: i32) -> Result<i32> {
    if status >= 0 {
        return Ok(status);
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
