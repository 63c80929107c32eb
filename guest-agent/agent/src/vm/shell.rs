//! An interactive shell on a terminal of its own.

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use service::Shell;
use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use tokio::process::Command;
use tokio::task::spawn_local;
use wire::{ErrorCode, Fault};

const SHELLS: [&str; 2] = ["/bin/bash", "/bin/sh"];

/// Starts a login shell on a fresh terminal of `cols` × `rows`. Error `SPAWN_FAILED`.
pub fn open(cols: u16, rows: u16) -> Result<Shell, Fault> {
    let failed = |error: std::io::Error| Fault::new(ErrorCode::SpawnFailed, format!("cannot open a shell: {error}"));
    let (master, terminal) = open_terminal(cols, rows).map_err(|errno| failed(errno.into()))?;
    let program = SHELLS.into_iter().find(|path| std::path::Path::new(path).exists()).unwrap_or(SHELLS[1]);
    let name = program.rsplit('/').next().unwrap_or(program);
    let mut command = Command::new(program);
    command.arg0(format!("-{name}")).current_dir(home()).env("TERM", "xterm-256color").env("HOME", home());
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: between fork and exec the closure makes system calls only, on memory that was prepared before.
    unsafe { command.pre_exec(move || take_terminal(&terminal)) };
    let mut child = command.spawn().map_err(failed)?;
    // A task of its own waits for it, so that a session that is given up leaves no zombie.
    let waiting = spawn_local(async move { child.wait().await });
    let ended = Box::pin(async {
        // How a shell ended is of no interest to version 1.
        let _ = waiting.await;
    });
    Ok(Shell { master, ended })
}

fn open_terminal(cols: u16, rows: u16) -> Result<(OwnedFd, CString), Errno> {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    grantpt(&master)?;
    unlockpt(&master)?;
    tcsetwinsize(&master, Winsize { ws_col: cols, ws_row: rows, ws_xpixel: 0, ws_ypixel: 0 })?;
    fcntl_setfl(&master, fcntl_getfl(&master)? | OFlags::NONBLOCK)?;
    let terminal = ptsname(&master, Vec::new())?;
    Ok((master, terminal))
}

/// Makes the terminal the controlling one of a new session: the first that a session leader opens.
fn take_terminal(terminal: &CString) -> std::io::Result<()> {
    // SAFETY: plain system calls with a valid C string; descriptors 0 to 2 are the child's own.
    unsafe {
        if libc::setsid() < 0 {
            return Err(std::io::Error::last_os_error());
        }
        let slave = libc::open(terminal.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        if slave < 0 || (0..=2).any(|standard| libc::dup2(slave, standard) < 0) {
            return Err(std::io::Error::last_os_error());
        }
    }
    Ok(())
}

fn home() -> &'static str {
    if std::path::Path::new("/root").is_dir() { "/root" } else { "/" }
}
