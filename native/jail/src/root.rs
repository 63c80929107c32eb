//! The file tree of the jail: an empty root that cannot be written, with one directory in it.

use crate::{JailError, step};
use rustix::fs::{Mode, OFlags, mkdirat, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use std::os::fd::AsRawFd;
use std::path::Path;

/// Where the process sees its directory.
pub const DIRECTORY: &str = "/vm";

const BARE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Makes the root, in a mount namespace that nobody else is in.
pub fn pivot(directory: &Path) -> Result<(), JailError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(step("part from mounts"))?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let kept = open(directory, flags, Mode::empty()).map_err(step("open the directory"))?;
    // The new root covers the directory that it is mounted on; the descriptor still leads below.
    mount("jail", directory, "tmpfs", BARE, c"size=4k,nr_inodes=4,mode=755").map_err(step("make an empty root"))?;
    let root = open(directory, flags, Mode::empty()).map_err(step("open the root"))?;
    let name = DIRECTORY.trim_start_matches('/');
    mkdirat(&root, name, Mode::from_raw_mode(0o755)).map_err(step("make a place for the directory"))?;
    fchdir(&root).map_err(step("enter the root"))?;
    mount_bind(format!("/proc/self/fd/{}", kept.as_raw_fd()), name).map_err(step("bind the directory"))?;
    mount_remount(name, MountFlags::BIND | BARE, c"").map_err(step("make the directory bare"))?;
    pivot_root(".", ".").map_err(step("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leave the old root"))?;
    chdir("/").map_err(step("enter the root"))?;
    mount_remount("/", MountFlags::BIND | BARE | MountFlags::RDONLY, c"").map_err(step("seal the root"))
}
