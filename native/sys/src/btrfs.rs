//! The btrfs calls that the workspace pool needs: subvolumes, snapshots, quota groups and the file system's identity.
//! Descriptors are of directories on the file system; names are single path components.

use crate::ioctl::{READ, WRITE, request_number, with_integer, with_structure};
use rustix::io::{Errno, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

const GROUP: u32 = 0x94;
const NAME_OFFSET_SIZE: usize = 4088;
const NAME_V2_SIZE: usize = 4040;
const COMPONENT_MAX_BYTES: usize = 255;
const TREE_ROOT: u64 = 1;
const TREE_QUOTA: u64 = 8;
const ITEM_ROOT: u32 = 132;
const ITEM_ROOT_REFERENCE: u32 = 156;
const ITEM_QGROUP_INFO: u32 = 242;
const FIRST_FREE_OBJECT: u64 = 256;
const LIMIT_MAX_REFERENCED: u64 = 1;
const DELETE_BY_ID: u64 = 1 << 4;
const QGROUP_LEVEL_SHIFT: u32 = 48;
const SEARCH_BUFFER_SIZE: usize = 3992;
const SEARCH_HEADER_SIZE: usize = 32;

#[repr(C)]
struct VolumeArguments {
    fd: i64,
    name: [u8; NAME_OFFSET_SIZE],
}

#[repr(C)]
struct VolumeArgumentsV2 {
    fd: i64,
    transaction: u64,
    flags: u64,
    unused: [u64; 4],
    name: [u8; NAME_V2_SIZE],
}

#[repr(C)]
struct QuotaControl {
    command: u64,
    status: u64,
}

#[repr(C)]
struct QgroupCreate {
    create: u64,
    id: u64,
}

#[repr(C)]
struct QgroupAssign {
    assign: u64,
    member: u64,
    group: u64,
}

#[repr(C)]
struct QgroupLimit {
    id: u64,
    flags: u64,
    max_referenced: u64,
    max_exclusive: u64,
    reserved_referenced: u64,
    reserved_exclusive: u64,
}

#[repr(C)]
struct InodeLookup {
    tree: u64,
    object: u64,
    name: [u8; 4080],
}

#[repr(C)]
struct FileSystemInformation {
    max_id: u64,
    devices: u64,
    id: [u8; 16],
    rest: [u8; 992],
}

#[repr(C)]
struct Search {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transaction: u64,
    max_transaction: u64,
    min_type: u32,
    max_type: u32,
    items: u32,
    unused: u32,
    unused_words: [u64; 4],
    buffer: [u8; SEARCH_BUFFER_SIZE],
}

const SUBVOLUME_CREATE: libc::Ioctl = request_number(WRITE, GROUP, 14, size_of::<VolumeArguments>());
const SUBVOLUME_DESTROY: libc::Ioctl = request_number(WRITE, GROUP, 15, size_of::<VolumeArguments>());
const SNAPSHOT_CREATE: libc::Ioctl = request_number(WRITE, GROUP, 23, size_of::<VolumeArgumentsV2>());
const SYNC: libc::Ioctl = request_number(0, GROUP, 8, 0);
const QUOTA_CONTROL: libc::Ioctl = request_number(READ | WRITE, GROUP, 40, size_of::<QuotaControl>());
const SUBVOLUME_DESTROY_V2: libc::Ioctl = request_number(WRITE, GROUP, 63, size_of::<VolumeArgumentsV2>());
const QGROUP_ASSIGN: libc::Ioctl = request_number(WRITE, GROUP, 41, size_of::<QgroupAssign>());
const QGROUP_CREATE: libc::Ioctl = request_number(WRITE, GROUP, 42, size_of::<QgroupCreate>());
const QGROUP_LIMIT: libc::Ioctl = request_number(READ, GROUP, 43, size_of::<QgroupLimit>());
const INODE_LOOKUP: libc::Ioctl = request_number(READ | WRITE, GROUP, 18, size_of::<InodeLookup>());
const TREE_SEARCH: libc::Ioctl = request_number(READ | WRITE, GROUP, 17, size_of::<Search>());
const FILE_SYSTEM_INFORMATION: libc::Ioctl = request_number(READ, GROUP, 31, size_of::<FileSystemInformation>());

const _: () = assert!(size_of::<VolumeArguments>() == 4096);
const _: () = assert!(size_of::<VolumeArgumentsV2>() == 4096);
const _: () = assert!(size_of::<InodeLookup>() == 4096);
const _: () = assert!(size_of::<Search>() == 4096);
const _: () = assert!(size_of::<FileSystemInformation>() == 1024);

/// Which accounting a file system gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quota {
    /// Extents belong to the subvolume that wrote them; cheap whatever a sandbox does with its files.
    Simple,
    /// Full quota groups: the only kind before Linux 6.7.
    Qgroups,
}

/// The file system's UUID. `NOTTY`: not btrfs.
pub fn file_system_id(directory: BorrowedFd<'_>) -> Result<[u8; 16]> {
    let mut information = FileSystemInformation { max_id: 0, devices: 0, id: [0; 16], rest: [0; 992] };
    // SAFETY: FS_INFO fills exactly this structure.
    unsafe { with_structure(directory, FILE_SYSTEM_INFORMATION, &mut information) }?;
    Ok(information.id)
}

/// The id of the subvolume that holds `directory`.
pub fn subvolume_id(directory: BorrowedFd<'_>) -> Result<u64> {
    let mut lookup = InodeLookup { tree: 0, object: FIRST_FREE_OBJECT, name: [0; 4080] };
    // SAFETY: INO_LOOKUP reads and fills exactly this structure.
    unsafe { with_structure(directory, INODE_LOOKUP, &mut lookup) }?;
    Ok(lookup.tree)
}

/// Makes an empty subvolume `name` in `parent`. `EXIST`: the name is taken.
pub fn create_subvolume(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let mut arguments = VolumeArguments { fd: 0, name: component(name)? };
    // SAFETY: SUBVOL_CREATE reads exactly this structure.
    unsafe { with_structure(parent, SUBVOLUME_CREATE, &mut arguments) }.map(|_| ())
}

/// Makes `name` in `parent` a writable snapshot of the subvolume whose root is `source`.
pub fn create_snapshot(source: BorrowedFd<'_>, parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let mut arguments = VolumeArgumentsV2 {
        fd: i64::from(source.as_raw_fd()),
        transaction: 0,
        flags: 0,
        unused: [0; 4],
        name: component(name)?,
    };
    // SAFETY: SNAP_CREATE_V2 reads exactly this structure; the source is borrowed for the call.
    unsafe { with_structure(parent, SNAPSHOT_CREATE, &mut arguments) }.map(|_| ())
}

/// Deletes the subvolume `name` of `parent`. Its space comes back later, from the file system's cleaner.
pub fn delete_subvolume(parent: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
    let mut arguments = VolumeArguments { fd: 0, name: component(name)? };
    // SAFETY: SNAP_DESTROY reads exactly this structure.
    unsafe { with_structure(parent, SUBVOLUME_DESTROY, &mut arguments) }.map(|_| ())
}

/// Commits what is pending and wakes the cleaner, which gives back the space of deleted subvolumes.
pub fn commit_and_clean(directory: BorrowedFd<'_>) -> Result<()> {
    with_integer(directory, SYNC, 0).map(|_| ())
}

/// Turns accounting on for the whole file system. `INVAL` or `OPNOTSUPP`: this kernel lacks that kind.
pub fn enable_quota(directory: BorrowedFd<'_>, quota: Quota) -> Result<()> {
    let command = match quota {
        Quota::Qgroups => 1,
        Quota::Simple => 4,
    };
    let mut control = QuotaControl { command, status: 0 };
    // SAFETY: QUOTA_CTL reads exactly this structure.
    unsafe { with_structure(directory, QUOTA_CONTROL, &mut control) }.map(|_| ())
}

/// The quota group that stands for a volume with everything nested in it: level 1, numbered like its subvolume.
pub const fn volume_qgroup(subvolume_id: u64) -> u64 {
    (1 << QGROUP_LEVEL_SHIFT) | subvolume_id
}

/// The subvolume id inside a quota group's id, and the level.
pub const fn split_qgroup(id: u64) -> (u64, u64) {
    (id >> QGROUP_LEVEL_SHIFT, id & ((1 << QGROUP_LEVEL_SHIFT) - 1))
}

/// The bound that is none.
pub const UNLIMITED: u64 = u64::MAX;

/// Bounds the bytes that a quota group may reference, metadata included.
pub fn limit_qgroup(directory: BorrowedFd<'_>, id: u64, max_bytes: u64) -> Result<()> {
    let mut limit = QgroupLimit {
        id,
        flags: LIMIT_MAX_REFERENCED,
        max_referenced: max_bytes,
        max_exclusive: 0,
        reserved_referenced: 0,
        reserved_exclusive: 0,
    };
    // SAFETY: QGROUP_LIMIT reads exactly this structure.
    unsafe { with_structure(directory, QGROUP_LIMIT, &mut limit) }.map(|_| ())
}

/// Makes a quota group. `EXIST`: it is there.
pub fn create_qgroup(directory: BorrowedFd<'_>, id: u64) -> Result<()> {
    let mut arguments = QgroupCreate { create: 1, id };
    // SAFETY: QGROUP_CREATE reads exactly this structure.
    unsafe { with_structure(directory, QGROUP_CREATE, &mut arguments) }.map(|_| ())
}

/// Puts quota group `member` under `group`. Subvolumes that are later made inside follow by themselves (simple quotas).
pub fn assign_qgroup(directory: BorrowedFd<'_>, member: u64, group: u64) -> Result<()> {
    let mut arguments = QgroupAssign { assign: 1, member, group };
    // SAFETY: QGROUP_ASSIGN reads exactly this structure.
    unsafe { with_structure(directory, QGROUP_ASSIGN, &mut arguments) }.map(|_| ())
}

/// Removes a quota group. `BUSY`: members or unfinished deletions hold it; `NOENT`: none there.
pub fn remove_qgroup(directory: BorrowedFd<'_>, id: u64) -> Result<()> {
    let mut arguments = QgroupCreate { create: 0, id };
    // SAFETY: QGROUP_CREATE reads exactly this structure.
    unsafe { with_structure(directory, QGROUP_CREATE, &mut arguments) }.map(|_| ())
}

/// Ids of all quota groups, subvolumes' own and volumes' alike.
pub fn qgroup_ids(directory: BorrowedFd<'_>) -> Result<Vec<u64>> {
    offsets_in(directory, TREE_QUOTA, 0, ITEM_QGROUP_INFO)
}

/// Ids of the subvolumes that lie directly inside subvolume `id`.
pub fn nested_subvolumes(directory: BorrowedFd<'_>, id: u64) -> Result<Vec<u64>> {
    offsets_in(directory, TREE_ROOT, id, ITEM_ROOT_REFERENCE)
}

/// Deletes a subvolume by id, wherever it lies. Needs Linux 5.7.
pub fn delete_subvolume_by_id(directory: BorrowedFd<'_>, id: u64) -> Result<()> {
    let mut name = [0; NAME_V2_SIZE];
    name[..8].copy_from_slice(&id.to_ne_bytes());
    let mut arguments = VolumeArgumentsV2 { fd: 0, transaction: 0, flags: DELETE_BY_ID, unused: [0; 4], name };
    // SAFETY: SNAP_DESTROY_V2 reads exactly this structure; with this flag the name's first word is the id.
    unsafe { with_structure(directory, SUBVOLUME_DESTROY_V2, &mut arguments) }.map(|_| ())
}

/// The key offsets of every item of one object and type.
fn offsets_in(directory: BorrowedFd<'_>, tree: u64, object: u64, item: u32) -> Result<Vec<u64>> {
    let mut all = Vec::new();
    let mut from = 0;
    loop {
        let mut search = search(tree, (object, object), (item, item), (from, u64::MAX));
        // SAFETY: TREE_SEARCH reads the key and fills the buffer of exactly this structure.
        unsafe { with_structure(directory, TREE_SEARCH, &mut search) }?;
        let found = offsets_of(&search, item);
        let Some(&last) = found.last() else { return Ok(all) };
        all.extend(found);
        let Some(next) = last.checked_add(1) else { return Ok(all) };
        from = next;
    }
}

/// Whether a subvolume with this id exists, or waits for the cleaner.
pub fn subvolume_exists(directory: BorrowedFd<'_>, id: u64) -> Result<bool> {
    let mut search = search(TREE_ROOT, (id, id), (ITEM_ROOT, ITEM_ROOT), (0, u64::MAX));
    search.items = 1;
    // SAFETY: TREE_SEARCH reads the key and fills the buffer of exactly this structure.
    unsafe { with_structure(directory, TREE_SEARCH, &mut search) }?;
    Ok(search.items > 0)
}

fn search(tree: u64, objects: (u64, u64), types: (u32, u32), offsets: (u64, u64)) -> Search {
    Search {
        tree,
        min_object: objects.0,
        max_object: objects.1,
        min_offset: offsets.0,
        max_offset: offsets.1,
        min_transaction: 0,
        max_transaction: u64::MAX,
        min_type: types.0,
        max_type: types.1,
        items: u32::MAX,
        unused: 0,
        unused_words: [0; 4],
        buffer: [0; SEARCH_BUFFER_SIZE],
    }
}

/// The key offsets of the found items of one type; a header is (transaction, object, offset, type, length).
fn offsets_of(search: &Search, wanted_type: u32) -> Vec<u64> {
    let mut offsets = Vec::new();
    let mut position = 0;
    for _ in 0..search.items {
        let Some(header) = search.buffer.get(position..position + SEARCH_HEADER_SIZE) else { break };
        let word = |at: usize| u32::from_ne_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let offset = u64::from_ne_bytes(header[16..24].try_into().unwrap_or_default());
        if word(24) == wanted_type {
            offsets.push(offset);
        }
        position += SEARCH_HEADER_SIZE + word(28) as usize;
    }
    offsets
}

/// Whether a name is one plain path component, which is what names a subvolume.
pub fn is_component(name: &[u8]) -> bool {
    let special = name.is_empty() || name == b"." || name == b"..";
    !special && name.len() <= COMPONENT_MAX_BYTES && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

/// A NUL-padded single path component. `INVAL`: it is none.
fn component<const SIZE: usize>(name: &[u8]) -> Result<[u8; SIZE]> {
    if !is_component(name) {
        return Err(Errno::INVAL);
    }
    let mut padded = [0; SIZE];
    padded[..name.len()].copy_from_slice(name);
    Ok(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_plain_component() {
        assert!(component::<NAME_V2_SIZE>(b"a.b-C").is_ok());
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256]] {
            assert_eq!(component::<NAME_V2_SIZE>(bad), Err(Errno::INVAL));
        }
    }

    #[test]
    fn a_truncated_search_answer_is_not_read_beyond_its_end() {
        let mut answer = search(TREE_QUOTA, (0, 0), (0, 0), (0, 0));
        answer.items = 1000;
        assert_eq!(offsets_of(&answer, 0).len(), SEARCH_BUFFER_SIZE / SEARCH_HEADER_SIZE);
    }
}
