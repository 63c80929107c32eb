//! Who is at the other end of a unix socket.

use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Pid, uid and gid of the peer at connect time. The pid is 0 when the peer is in a pid namespace that is not ours.
pub fn peer_credentials(socket: BorrowedFd<'_>) -> Result<[u32; 3]> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: SO_PEERCRED fills at most `length` bytes of exactly this structure.
    let status = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            std::ptr::from_mut(&mut peer).cast(),
            &mut length,
        )
    };
    if status < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok([peer.pid.cast_unsigned(), peer.uid, peer.gid])
}
