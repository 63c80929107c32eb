//! Namespaces of the calling thread.

use rustix::io::{Errno, Result};
use std::io;

/// Gives the calling thread a network namespace of its own, without any interface that is up. Threads that it starts
/// inherit it; the other threads of the process stay where they are.
///
/// # Errors
/// `PERM` without the right to it, `NOSPC` when there are too many.
pub fn own_network() -> Result<()> {
    // SAFETY: unshare takes an integer and changes no memory; network namespaces are a property of the thread alone.
    let status = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    if status == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}
