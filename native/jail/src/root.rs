//! The file tree of the jail: an empty root that cannot be written, with two directories in it.

use crate::{JailError, step};
use fluxvm_sys::Errno;
use fluxvm_sys::landlock::{Changes, limit_changes};
use rustix::fs::{Mode, OFlags, mkdirat, open};
use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind, mount_change, mount_remount, unmount,
};
use rustix::process::{chdir, fchdir, pivot_root};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// Where the process sees the directory of its files.
pub const DIRECTORY: &str = "/vm";
/// Where it sees the directory of its sockets.
pub const SOCKETS: &str = "/run";

const BARE: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);
const PLACE: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Makes the root, in a mount namespace that nobody else is in.
pub fn pivot(directory: &Path, sockets: &Path) -> Result<(), JailError> {
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).map_err(step("part from mounts"))?;
    let kept = open(directory, PLACE, Mode::empty()).map_err(step("open the directory"))?;
    let kept_sockets = open(sockets, PLACE, Mode::empty()).map_err(step("open the directory of sockets"))?;
    // The new root covers the directory that it is mounted on; the descriptors still lead below.
    mount("jail", directory, "tmpfs", BARE, c"size=4k,nr_inodes=4,mode=755").map_err(step("make an empty root"))?;
    let root = open(directory, PLACE, Mode::empty()).map_err(step("open the root"))?;
    fchdir(&root).map_err(step("enter the root"))?;
    bind(&root, &kept, DIRECTORY)?;
    bind(&root, &kept_sockets, SOCKETS)?;
    pivot_root(".", ".").map_err(step("change the root"))?;
    unmount(".", UnmountFlags::DETACH).map_err(step("leave the old root"))?;
    chdir("/").map_err(step("enter the root"))?;
    mount_remount("/", MountFlags::BIND | BARE | MountFlags::RDONLY, c"").map_err(step("seal the root"))
}

/// Of the directory of sockets, which may be memory of the host, the process fills none: it makes sockets and removes them.
/// A host without Landlock bounds that by the cgroup alone.
pub fn limit_directories() -> Result<(), JailError> {
    let files = open(DIRECTORY, PLACE, Mode::empty()).map_err(step("open its directory"))?;
    let sockets = open(SOCKETS, PLACE, Mode::empty()).map_err(step("open its sockets"))?;
    match limit_changes(&[(files.as_fd(), Changes::Files), (sockets.as_fd(), Changes::Sockets)]) {
        Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(JailError::Step("limit what may be changed", errno)),
    }
}

/// Binds a directory in the root, where the process is.
fn bind(root: &OwnedFd, directory: &OwnedFd, place: &str) -> Result<(), JailError> {
    let name = place.trim_start_matches('/');
    mkdirat(root, name, Mode::from_raw_mode(0o755)).map_err(step("make a place for a directory"))?;
    let source = format!("/proc/self/fd/{}", directory.as_raw_fd());
    mount_bind(source, name).map_err(step("bind a directory"))?;
    mount_remount(name, MountFlags::BIND | BARE, c"").map_err(step("make a directory bare"))
}
