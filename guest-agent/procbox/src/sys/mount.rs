//! The descriptor-based mount calls: trees are cloned before anything is hidden and attached where they belong,
//! so that no path is resolved twice.

use super::check;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

pub const READ_ONLY: u64 = libc::MOUNT_ATTR_RDONLY;
pub const NO_SUID: u64 = libc::MOUNT_ATTR_NOSUID;
pub const NO_DEVICES: u64 = libc::MOUNT_ATTR_NODEV;
pub const NO_EXEC: u64 = libc::MOUNT_ATTR_NOEXEC;

const FSCONFIG_SET_STRING: libc::c_int = 1;
const FSCONFIG_CMD_CREATE: libc::c_int = 6;
const MOVE_MOUNT_F_EMPTY_PATH: libc::c_int = 0x4;
const MOVE_MOUNT_T_EMPTY_PATH: libc::c_int = 0x40;

fn owned(value: libc::c_long) -> io::Result<OwnedFd> {
    let raw = check(value)? as libc::c_int;
    // SAFETY: the kernel just returned this descriptor to us and nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

/// Clones the tree mounted at `path` (links are followed), with everything mounted below it.
pub fn clone_tree(path: &CStr) -> io::Result<OwnedFd> {
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | libc::AT_RECURSIVE as libc::c_uint;
    // SAFETY: `path` is a NUL-terminated string for the length of the call.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, libc::AT_FDCWD, path.as_ptr(), flags) })
}

/// Clones the tree mounted where the directory `place` is, with everything mounted below it.
pub fn clone_tree_of(place: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let how = (libc::AT_RECURSIVE | libc::AT_EMPTY_PATH) as libc::c_uint;
    let flags = libc::OPEN_TREE_CLONE | libc::OPEN_TREE_CLOEXEC | how;
    // SAFETY: the path is a constant.
    owned(unsafe { libc::syscall(libc::SYS_open_tree, place.as_raw_fd(), c"".as_ptr(), flags) })
}

/// Sets `attributes` on the mount `tree`, and on all below it when `recursive`.
pub fn set_attributes(tree: BorrowedFd<'_>, attributes: u64, recursive: bool) -> io::Result<()> {
    change(tree, libc::mount_attr { attr_set: attributes, attr_clr: 0, propagation: 0, userns_fd: 0 }, recursive)
}

/// Lets users appear on the detached mount `tree`, and on all below it, as the user namespace `users` maps them: its
/// inner ids are those on the disk, its outer ids those who use the mount.
pub fn map_users(tree: BorrowedFd<'_>, users: BorrowedFd<'_>) -> io::Result<()> {
    let userns_fd = users.as_raw_fd() as u64;
    let attr = libc::mount_attr { attr_set: libc::MOUNT_ATTR_IDMAP, attr_clr: 0, propagation: 0, userns_fd };
    change(tree, attr, true)
}

fn change(tree: BorrowedFd<'_>, attr: libc::mount_attr, recursive: bool) -> io::Result<()> {
    let flags = libc::AT_EMPTY_PATH | if recursive { libc::AT_RECURSIVE } else { 0 };
    // SAFETY: the path is a constant and `attr` is a whole mount_attr, both alive during the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            flags,
            &attr as *const libc::mount_attr,
            size_of::<libc::mount_attr>(),
        )
    })?;
    Ok(())
}

/// Attaches a detached tree at `path` below `directory`.
pub fn attach(tree: BorrowedFd<'_>, directory: BorrowedFd<'_>, path: &CStr) -> io::Result<()> {
    // SAFETY: both paths are NUL-terminated strings for the length of the call.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            directory.as_raw_fd(),
            path.as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Attaches a detached tree on the object that `target` is.
pub fn attach_on(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: both paths are constants.
    check(unsafe {
        libc::syscall(
            libc::SYS_move_mount,
            tree.as_raw_fd(),
            c"".as_ptr(),
            target.as_raw_fd(),
            c"".as_ptr(),
            MOVE_MOUNT_F_EMPTY_PATH | MOVE_MOUNT_T_EMPTY_PATH,
        )
    })?;
    Ok(())
}

/// Makes a new, detached file system of `kind` with `options` and mount `attributes`.
pub fn new_filesystem(kind: &CStr, options: &[(&CStr, &CStr)], attributes: u64) -> io::Result<OwnedFd> {
    const FSOPEN_CLOEXEC: libc::c_int = 1;
    const FSMOUNT_CLOEXEC: libc::c_int = 1;
    // SAFETY: `kind` is a NUL-terminated string for the length of the call.
    let context = owned(unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) })?;
    for (key, value) in options {
        configure(context.as_fd(), FSCONFIG_SET_STRING, Some(key), Some(value))?;
    }
    configure(context.as_fd(), FSCONFIG_CMD_CREATE, None, None)?;
    // SAFETY: plain integers only.
    owned(unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, attributes) })
}

fn configure(
    context: BorrowedFd<'_>,
    command: libc::c_int,
    key: Option<&CStr>,
    value: Option<&CStr>,
) -> io::Result<()> {
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: each pointer is null or a NUL-terminated string for the length of the call.
    check(unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, pointer(key), pointer(value), 0) })?;
    Ok(())
}

/// Stops mount events from travelling between this mount namespace and the host's.
pub fn make_all_private() -> io::Result<()> {
    propagate(libc::MS_PRIVATE)
}

/// Keeps what is mounted here from the host, and follows what the host does: a file system that the host unmounts is not
/// held by this mount namespace.
pub fn make_all_follow() -> io::Result<()> {
    propagate(libc::MS_SLAVE)
}

fn propagate(how: libc::c_ulong) -> io::Result<()> {
    let flags = libc::MS_REC | how;
    // SAFETY: the target is a constant; the other pointers may be null for a propagation change.
    check(unsafe { libc::mount(std::ptr::null(), c"/".as_ptr(), std::ptr::null(), flags, std::ptr::null()) }.into())?;
    Ok(())
}

/// Makes `root`, a mount, the root of this process's mount namespace and leaves nothing of the old one.
pub fn change_root(root: BorrowedFd<'_>) -> io::Result<()> {
    nix::unistd::fchdir(root)?;
    // SAFETY: both paths are constants.
    match check(unsafe { libc::syscall(libc::SYS_pivot_root, c".".as_ptr(), c".".as_ptr()) }) {
        Ok(_) => {
            // SAFETY: the path is a constant. Both roots are stacked at "."; this takes away the upper, old one.
            check(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) }.into())?;
        }
        // The old root is not a mount of its own (an initial ramdisk, a chroot): cover it and enter the cover.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            let null = std::ptr::null::<libc::c_char>();
            // SAFETY: the paths are constants; type and data may be null for a move.
            check(unsafe { libc::mount(c".".as_ptr(), c"/".as_ptr(), null, libc::MS_MOVE, null.cast()) }.into())?;
            nix::unistd::chroot(c".")?;
        }
        Err(error) => return Err(error),
    }
    nix::unistd::chdir(c"/")?;
    Ok(())
}
