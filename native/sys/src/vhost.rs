//! The one request to vhost-net that is about network devices: which tap is behind a queue.

use crate::ioctl::{WRITE, request_number, with_structure};
use rustix::io::Result;
use std::os::fd::{AsRawFd, BorrowedFd};

const GROUP: u32 = 0xAF;
const SET_BACKEND: libc::Ioctl = request_number(WRITE, GROUP, 0x30, size_of::<VringFile>());
/// In place of a descriptor: no tap.
const NONE: i32 = -1;

#[repr(C)]
struct VringFile {
    index: u32,
    file: i32,
}

/// Puts a tap behind a queue, which begins then, or takes it away: afterwards the kernel works on that queue no more.
///
/// # Errors
/// `INVAL` when it is no tap, `FAULT` when the rings are not where they were said to be, `BADF` without an owner, or what
/// else the kernel says.
pub fn set_backend(vhost: BorrowedFd<'_>, index: u32, tap: Option<BorrowedFd<'_>>) -> Result<()> {
    let mut request = VringFile { index, file: tap.map_or(NONE, |tap| tap.as_raw_fd()) };
    // SAFETY: VHOST_NET_SET_BACKEND reads one such structure.
    unsafe { with_structure(vhost, SET_BACKEND, &mut request) }.map(drop)
}
