//! Jobs on the btrfs workspace pool. A volume is a subvolume whose bound sits in a quota group of level 1, so that
//! subvolumes which somebody nests inside share it; without simple quotas the bound sits on the subvolume itself.

use fluxvm_sys::btrfs::{self, Quota};
use rustix::fs::{Gid, Mode, OFlags, Uid, fchmod, fchown, fstat, open, openat};
use rustix::io::{Errno, Result};
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Inode number of every subvolume's root directory.
const SUBVOLUME_ROOT_INODE: u64 = 256;
/// Bound on subvolumes nested in one volume that one deletion removes.
const NESTED_MAX: usize = 100_000;
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC).union(OFlags::NOFOLLOW);

/// A volume's bound and the owner of its root directory.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// Bytes that the volume may reference.
    pub limit_bytes: u64,
    /// Whether the pool has simple quotas. Full ones would need a rescan after a clone joins a group.
    pub simple_quota: bool,
    /// Permission bits.
    pub mode: u32,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// UUID halves (big-endian) and subvolume id. `NOTTY`: not btrfs.
pub fn identity(path: &CStr) -> Result<[u64; 3]> {
    let directory = open(path, DIRECTORY, Mode::empty())?;
    let id = u128::from_be_bytes(btrfs::file_system_id(directory.as_fd())?);
    Ok([(id >> 64) as u64, id as u64, btrfs::subvolume_id(directory.as_fd())?])
}

/// Turns quotas on; true when they are the simple ones.
pub fn enable_quota(path: &CStr) -> Result<bool> {
    let directory = open(path, DIRECTORY, Mode::empty())?;
    match btrfs::enable_quota(directory.as_fd(), Quota::Simple) {
        Ok(()) => Ok(true),
        Err(Errno::INVAL | Errno::OPNOTSUPP) => {
            btrfs::enable_quota(directory.as_fd(), Quota::Qgroups)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Makes an empty volume. When a later step fails the subvolume is removed again.
pub fn create(parent: &CStr, name: &CStr, terms: Terms) -> Result<u64> {
    let parent = open(parent, DIRECTORY, Mode::empty())?;
    btrfs::create_subvolume(parent.as_fd(), name.to_bytes())?;
    finish(&parent, name, terms)
}

/// Makes a volume from what another one holds at this instant.
pub fn clone(source: &CStr, parent: &CStr, name: &CStr, terms: Terms) -> Result<u64> {
    let source = open(source, DIRECTORY, Mode::empty())?;
    let parent = open(parent, DIRECTORY, Mode::empty())?;
    btrfs::create_snapshot(source.as_fd(), parent.as_fd(), name.to_bytes())?;
    finish(&parent, name, terms)
}

fn finish(parent: &OwnedFd, name: &CStr, terms: Terms) -> Result<u64> {
    let root = openat(parent, name, DIRECTORY, Mode::empty())?;
    let outcome = bound(root.as_fd(), terms).and_then(|id| {
        fchown(&root, Some(Uid::from_raw(terms.uid)), Some(Gid::from_raw(terms.gid)))?;
        fchmod(&root, Mode::from_raw_mode(terms.mode & 0o777))?;
        Ok(id)
    });
    outcome.inspect_err(|_| {
        let _ = btrfs::delete_subvolume(parent.as_fd(), name.to_bytes());
    })
}

fn bound(root: BorrowedFd<'_>, terms: Terms) -> Result<u64> {
    let id = btrfs::subvolume_id(root)?;
    btrfs::limit_qgroup(root, id, terms.limit_bytes)?;
    if !terms.simple_quota {
        return Ok(id);
    }
    let group = btrfs::volume_qgroup(id);
    match btrfs::create_qgroup(root, group) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    btrfs::limit_qgroup(root, group, terms.limit_bytes)?;
    btrfs::assign_qgroup(root, id, group)?;
    Ok(id)
}

/// Deletes a volume and what is nested in it. Returns its subvolume id, or 0 when there is none of that name.
/// `INVAL`: the name is there, but is no subvolume, or it is no name.
pub fn delete(parent: &CStr, name: &CStr) -> Result<u64> {
    // Anything else could name the pool itself, and everything nested in that would go.
    if !btrfs::is_component(name.to_bytes()) {
        return Err(Errno::INVAL);
    }
    let parent = open(parent, DIRECTORY, Mode::empty())?;
    let root = match openat(&parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(0),
        result => result?,
    };
    if fstat(&root)?.st_ino != SUBVOLUME_ROOT_INODE {
        return Err(Errno::INVAL);
    }
    let id = btrfs::subvolume_id(root.as_fd())?;
    drop(root);
    let nested = nested_deepest_first(parent.as_fd(), id)?;
    if !nested.is_empty() {
        // Removing a nested subvolume changes the directory that held it, which a full volume does not allow.
        for group in nested.iter().copied().chain([id, btrfs::volume_qgroup(id)]) {
            ignore_gone(btrfs::limit_qgroup(parent.as_fd(), group, btrfs::UNLIMITED))?;
        }
    }
    for nested in nested {
        ignore_gone(btrfs::delete_subvolume_by_id(parent.as_fd(), nested))?;
    }
    ignore_gone(btrfs::delete_subvolume(parent.as_fd(), name.to_bytes()))?;
    // The groups go when the cleaner has given back their space; what is left then is removed by a sweep.
    for group in [id, btrfs::volume_qgroup(id)] {
        let _ = btrfs::remove_qgroup(parent.as_fd(), group);
    }
    Ok(id)
}

fn nested_deepest_first(directory: BorrowedFd<'_>, id: u64) -> Result<Vec<u64>> {
    let mut found = vec![id];
    let mut next = 0;
    while next < found.len() {
        found.extend(btrfs::nested_subvolumes(directory, found[next])?);
        if found.len() > NESTED_MAX {
            return Err(Errno::TOOBIG);
        }
        next += 1;
    }
    found.remove(0);
    found.reverse();
    Ok(found)
}

/// Makes the cleaner work, and removes quota groups whose subvolume is gone. One that is still busy stays for the next
/// sweep. Returns how many were removed and how many wait.
pub fn sweep(path: &CStr) -> Result<[u64; 2]> {
    let directory = open(path, DIRECTORY, Mode::empty())?;
    btrfs::commit_and_clean(directory.as_fd())?;
    let (mut removed, mut waiting) = (0, 0);
    for group in btrfs::qgroup_ids(directory.as_fd())? {
        let (_, subvolume) = btrfs::split_qgroup(group);
        if subvolume < SUBVOLUME_ROOT_INODE || btrfs::subvolume_exists(directory.as_fd(), subvolume)? {
            continue;
        }
        match btrfs::remove_qgroup(directory.as_fd(), group) {
            Ok(()) => removed += 1,
            Err(Errno::NOENT) => {}
            Err(Errno::BUSY) => waiting += 1,
            Err(error) => return Err(error),
        }
    }
    Ok([removed, waiting])
}

fn ignore_gone(result: Result<()>) -> Result<()> {
    match result {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
