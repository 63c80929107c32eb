//! Which Landlock this kernel speaks.

use rustix::io::{Errno, Result};
use std::io;

const CREATE_RULESET_VERSION: u32 = 1;

/// The Landlock ABI version, at least 1. `NOSYS` or `OPNOTSUPP`: the kernel has none, or it is switched off.
pub fn abi_version() -> Result<i32> {
    // SAFETY: with this flag the kernel reads no attribute; it only returns its version.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0usize, CREATE_RULESET_VERSION)
    };
    if version < 0 {
        return Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO));
    }
    Ok(i32::try_from(version).unwrap_or(i32::MAX))
}
