//! Pseudo-terminals of a mounted devpts, by descriptor only.

use super::check;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// A terminal's two sides.
pub struct Terminal {
    /// Non-blocking.
    pub master: OwnedFd,
    pub slave: OwnedFd,
}

/// Makes a terminal of the devpts whose root is `mount`. It becomes nobody's controlling terminal.
pub fn open(mount: BorrowedFd<'_>, cols: u16, rows: u16) -> io::Result<Terminal> {
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = openat(mount, "ptmx", flags | OFlag::O_NONBLOCK, Mode::empty())?;
    let unlocked: libc::c_int = 0;
    // SAFETY: the request reads one int, alive during the call.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlocked) }.into())?;
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: the request reads a whole winsize, alive during the call.
    check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &size) }.into())?;
    // SAFETY: the request takes open flags and no pointer.
    let slave = check(unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags.bits()) }.into())?;
    // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
    let slave = unsafe { OwnedFd::from_raw_fd(slave as libc::c_int) };
    Ok(Terminal { master, slave })
}

/// Makes `slave` the controlling terminal of this process, which leads a session without one.
pub fn control(slave: &impl AsFd) -> io::Result<()> {
    // SAFETY: plain integers; 0 = do not take it from another session.
    check(unsafe { libc::ioctl(slave.as_fd().as_raw_fd(), libc::TIOCSCTTY, 0) }.into())?;
    Ok(())
}
