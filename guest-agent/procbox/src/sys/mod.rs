//! The kernel calls of the process sandbox, one safe function each. All unsafe code of the crate is below here.

pub mod landlock;
pub mod mount;
pub mod network;
pub mod packet;
pub mod process;
pub mod seccomp;
pub mod terminal;

use std::io;

/// Turns a system call's return value into a result.
fn check(value: libc::c_long) -> io::Result<libc::c_long> {
    if value < 0 { Err(io::Error::last_os_error()) } else { Ok(value) }
}
