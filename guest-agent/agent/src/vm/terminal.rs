//! Terminals: a master side for this process, and a command whose controlling terminal is the other side.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;
use std::process::Stdio;
use tokio::process::Command;
use wire::execution::TerminalSize;

/// A fresh terminal: its master side, non-blocking, and the name of the other.
pub fn open(size: TerminalSize) -> Result<(OwnedFd, CString), Errno> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    tcsetwinsize(&master, Winsize { ws_col: size.cols, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 })?;
    fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
    let name = ptsname(&master, Vec::new())?;
    Ok((master, name))
}

/// Lets `command` lead a session whose controlling terminal is the one with this name.
pub fn give(command: &mut Command, name: CString) {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes system calls only, on memory that was prepared before.
    unsafe { command.pre_exec(move || take(&name)) };
}

/// Makes the terminal the controlling one of a new session: the first that a session leader opens.
fn take(name: &CStr) -> std::io::Result<()> {
    // SAFETY: plain system calls with a valid C string; descriptors 0 to 2 are the child's own.
    unsafe {
        if libc::setsid() < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let terminal = libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if terminal < 0 || (0..=2).any(|standard| libc::dup2(terminal, standard) < 0) {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}
