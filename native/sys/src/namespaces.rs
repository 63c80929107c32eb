//! Namespaces of the calling thread.

use rustix::io::Result;
pub use rustix::thread::UnshareFlags;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, unshare_unsafe};
use std::os::fd::AsFd;

/// What may be left without the thread ceasing to share files, descriptors or memory with the others of its process.
const NAMESPACES: UnshareFlags = UnshareFlags::NEWNS
    .union(UnshareFlags::NEWCGROUP)
    .union(UnshareFlags::NEWUTS)
    .union(UnshareFlags::NEWIPC)
    .union(UnshareFlags::NEWUSER)
    .union(UnshareFlags::NEWPID)
    .union(UnshareFlags::NEWTIME)
    .union(UnshareFlags::NEWNET);

/// Gives the calling thread namespaces of its own; flags that name none are ignored. A new pid namespace and a new time
/// namespace begin with the next child.
///
/// # Errors
/// `PERM` without the right to it, `NOSPC` when there are too many, `INVAL` where the kernel wants a process with one
/// thread or has no namespaces of this kind.
pub fn leave(namespaces: UnshareFlags) -> Result<()> {
    // SAFETY: only namespaces are left, so that threads go on sharing descriptors and memory as Rust expects.
    unsafe { unshare_unsafe(namespaces & NAMESPACES) }
}

/// Gives the calling thread a network namespace of its own, without any interface that is up. Threads that it starts
/// inherit it; the other threads of the process stay where they are.
///
/// # Errors
/// As [`leave`].
pub fn own_network() -> Result<()> {
    leave(UnshareFlags::NEWNET)
}

/// Moves the calling thread into a network namespace; the other threads of the process stay where they are.
///
/// # Errors
/// `INVAL` when it is none, `PERM` without the right to it.
pub fn enter_network(namespace: impl AsFd) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
}
