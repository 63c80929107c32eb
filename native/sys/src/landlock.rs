//! Landlock: which version this kernel speaks, and taking away what the calling thread may make in directories.

use rustix::io::{Errno, Result};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

const CREATE_RULESET_VERSION: u32 = 1;
const RULE_BENEATH: u32 = 1;

const WRITE_FILE: u64 = 1 << 1;
const REMOVE_DIRECTORY: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_DIRECTORY: u64 = 1 << 7;
const MAKE_FILE: u64 = 1 << 8;
const MAKE_SOCKET: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const MAKE_LINK: u64 = 1 << 12;

/// All that changes a file tree, of the first version.
const CHANGES: u64 = WRITE_FILE
    | REMOVE_DIRECTORY
    | REMOVE_FILE
    | MAKE_CHARACTER_DEVICE
    | MAKE_DIRECTORY
    | MAKE_FILE
    | MAKE_SOCKET
    | MAKE_FIFO
    | MAKE_BLOCK_DEVICE
    | MAKE_LINK;

/// What may be changed below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Files and directories are made, written and removed.
    Files,
    /// Sockets are made, and they and files are removed.
    Sockets,
}

#[repr(C)]
struct RulesetAttributes {
    handled: u64,
}

#[repr(C, packed)]
struct BeneathAttributes {
    allowed: u64,
    parent: i32,
}

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

/// From now on, the calling thread and those that it starts change nothing but what is allowed below these directories.
/// Files that are open stay as they are. The thread must have given up new rights.
///
/// # Errors
/// `NOSYS` or `OPNOTSUPP` when the kernel has no Landlock, else what it says; nothing has changed then.
pub fn limit_changes(directories: &[(BorrowedFd<'_>, Changes)]) -> Result<()> {
    let attributes = RulesetAttributes { handled: CHANGES };
    // SAFETY: the kernel reads one attribute structure of this size.
    let ruleset = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const attributes, size_of::<RulesetAttributes>(), 0u32)
    };
    let ruleset = i32::try_from(checked(ruleset)?).map_err(|_| Errno::IO)?;
    // SAFETY: the descriptor is new and nobody else has it.
    let ruleset = unsafe { OwnedFd::from_raw_fd(ruleset) };
    for (directory, changes) in directories {
        let allowed = match changes {
            Changes::Files => WRITE_FILE | REMOVE_DIRECTORY | REMOVE_FILE | MAKE_DIRECTORY | MAKE_FILE,
            Changes::Sockets => REMOVE_FILE | MAKE_SOCKET,
        };
        let beneath = BeneathAttributes { allowed, parent: directory.as_raw_fd() };
        // SAFETY: the kernel reads one rule of this kind.
        checked(unsafe {
            libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), RULE_BENEATH, &raw const beneath, 0u32)
        })?;
    }
    // SAFETY: the call takes a descriptor.
    checked(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0u32) }).map(drop)
}

fn checked(status: libc::c_long) -> Result<libc::c_long> {
    if status >= 0 { Ok(status) } else { Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)) }
}
