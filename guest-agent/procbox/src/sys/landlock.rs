//! Landlock's three system calls and their constants.

use super::check;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub const EXECUTE: u64 = 1 << 0;
pub const WRITE_FILE: u64 = 1 << 1;
pub const READ_FILE: u64 = 1 << 2;
pub const READ_DIR: u64 = 1 << 3;
/// All rights of ABI 1: those above, two to remove, seven to make.
pub const ABI_1: u64 = (1 << 13) - 1;
pub const REFER: u64 = 1 << 13;
pub const TRUNCATE: u64 = 1 << 14;
pub const IOCTL_DEV: u64 = 1 << 15;

pub const TCP_BIND: u64 = 1 << 0;
pub const TCP_CONNECT: u64 = 1 << 1;

pub const SCOPE_ABSTRACT_UNIX: u64 = 1 << 0;
pub const SCOPE_SIGNAL: u64 = 1 << 1;

const CREATE_RULESET_VERSION: libc::c_uint = 1;
const RULE_PATH_BENEATH: libc::c_int = 1;
const RULE_NET_PORT: libc::c_int = 2;

/// What a ruleset decides about; everything else stays as it was.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct RulesetAttr {
    pub handled_access_fs: u64,
    pub handled_access_net: u64,
    pub scoped: u64,
}

#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

#[repr(C)]
struct NetPortAttr {
    allowed_access: u64,
    port: u64,
}

/// The kernel's ABI version; an error when Landlock is not built in (ENOSYS) or not switched on (EOPNOTSUPP).
pub fn abi() -> io::Result<u32> {
    let null = std::ptr::null::<RulesetAttr>();
    // SAFETY: with the version flag the kernel wants a null pointer and size 0.
    let version = unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, null, 0usize, CREATE_RULESET_VERSION) };
    Ok(check(version)? as u32)
}

/// Makes a ruleset. An attribute that this kernel does not know must be zero.
pub fn create_ruleset(attr: &RulesetAttr) -> io::Result<OwnedFd> {
    // Older kernels take the longer structure as long as what they do not know is zero.
    // SAFETY: `attr` is a whole structure of the given size during the call.
    let raw = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, attr as *const RulesetAttr, size_of::<RulesetAttr>(), 0)
    })?;
    // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw as i32) })
}

/// Allows `access` on `object` and, when it is a directory, on everything below it.
pub fn allow_path(ruleset: BorrowedFd<'_>, object: BorrowedFd<'_>, access: u64) -> io::Result<()> {
    let attr = PathBeneathAttr { allowed_access: access, parent_fd: object.as_raw_fd() };
    // SAFETY: the kind stands for this structure.
    unsafe { add_rule(ruleset, RULE_PATH_BENEATH, (&raw const attr).cast()) }
}

/// Allows `access` for TCP `port`.
pub fn allow_port(ruleset: BorrowedFd<'_>, port: u16, access: u64) -> io::Result<()> {
    let attr = NetPortAttr { allowed_access: access, port: port.into() };
    // SAFETY: the kind stands for this structure.
    unsafe { add_rule(ruleset, RULE_NET_PORT, (&raw const attr).cast()) }
}

/// # Safety
/// `attr` points to the structure that `kind` stands for.
unsafe fn add_rule(ruleset: BorrowedFd<'_>, kind: libc::c_int, attr: *const libc::c_void) -> io::Result<()> {
    // SAFETY: as promised by the caller; the structure is alive in it.
    check(unsafe { libc::syscall(libc::SYS_landlock_add_rule, ruleset.as_raw_fd(), kind, attr, 0) })?;
    Ok(())
}

/// Confines this thread, and all it starts, for ever. Needs no_new_privs.
pub fn restrict_self(ruleset: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain integers only.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })?;
    Ok(())
}
