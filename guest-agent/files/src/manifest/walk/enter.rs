//! Going into a directory: its names, and then each entry, by one thread or, in a large one, by several.

use super::super::listing::too_long;
use super::super::piece::{DirectoryId, Name, Names, Piece, Record};
use super::anchor::{device, look};
use super::look::Stop;
use super::{Scratch, Task, Walk};
use crate::errno::describe;
use crate::root::resolve_at;
use rustix::fs::{FileType, OFlags, RawDir, ResolveFlags};
use rustix::io::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use wire::entry::EntryKind;
use wire::limits::{MANIFEST_HASHED_MAX, PATH_MAX};
use wire::{ErrorCode, Fault};

/// Entries of one directory that one thread handles at a time; a larger directory is shared.
const CHUNK_ENTRIES: usize = 512;
const DIRECTORY_BUFFER_SIZE: usize = 64 << 10;

/// Bytes an entry adds to a listing beside its path, at least.
const ENTRY_OVERHEAD: u64 = 12;

/// A directory that was read and whose entries are to be looked at.
pub struct Listed {
    id: DirectoryId,
    pub anchor: usize,
    path: Vec<u8>,
    pub descriptor: OwnedFd,
    pub names: Names,
    entries: Vec<Named>,
    /// What was made of the entries so far, by everyone who looks at a part of them.
    records: Mutex<Records>,
}

#[derive(Default)]
struct Records {
    found: Vec<Record>,
    /// Entries looked at, whether they were still there or not.
    looked_at: usize,
}

#[derive(Clone, Copy)]
pub struct Named {
    pub name: Name,
    pub inode: u64,
    pub kind: FileType,
}

impl Walk<'_> {
    pub fn enter(&self, id: DirectoryId, anchor: usize, path: Vec<u8>, scratch: &mut Scratch) -> Result<(), Fault> {
        let Some(descriptor) = self.open_directory(anchor, &path)? else { return Ok(()) };
        let (names, entries) = self.read_directory(anchor, &path, descriptor.as_fd())?;
        let listed = Arc::new(Listed { id, anchor, path, descriptor, names, entries, records: Mutex::default() });
        let count = listed.entries.len();
        let later = (CHUNK_ENTRIES..count).step_by(CHUNK_ENTRIES);
        let later = later.map(|start| Task::Look(listed.clone(), start..count.min(start + CHUNK_ENTRIES)));
        if count > CHUNK_ENTRIES {
            self.add_tasks(later);
        }
        self.look_at(&listed, 0..count.min(CHUNK_ENTRIES), scratch)
    }

    /// The directory, or `None` when it is gone or is now the mount point of another file system.
    fn open_directory(&self, anchor: usize, path: &[u8]) -> Result<Option<OwnedFd>, Fault> {
        let anchor_stat = &self.anchors[anchor].stat;
        let base = self.anchors[anchor].directory.as_fd();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let relative = if path.is_empty() { b"." } else { path };
        let opened = resolve_at(base, relative, flags, resolve);
        match opened.and_then(|descriptor| Ok((look(descriptor.as_fd(), c"")?, descriptor))) {
            Ok((stat, descriptor)) => Ok((device(&stat) == device(anchor_stat)).then_some(descriptor)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) if !path.is_empty() => Ok(None),
            Err(Errno::NAMETOOLONG) => Err(path_too_long()),
            Err(errno) => Err(self.failure(errno, anchor, path, b"")),
        }
    }

    fn read_directory(
        &self,
        anchor: usize,
        path: &[u8],
        directory: BorrowedFd<'_>,
    ) -> Result<(Names, Vec<Named>), Fault> {
        let mut names = Names::default();
        let mut entries = Vec::new();
        let mut listing_bytes = 0;
        let mut buffer = vec![MaybeUninit::uninit(); DIRECTORY_BUFFER_SIZE];
        let mut reader = RawDir::new(directory, &mut buffer);
        while let Some(entry) = reader.next() {
            let entry = match entry {
                Ok(entry) => entry,
                // The directory was removed meanwhile, and so was what was in it.
                Err(Errno::NOENT) => break,
                Err(errno) => return Err(self.failure(errno, anchor, path, b"")),
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if path.len() + name.to_bytes().len() + 2 > PATH_MAX {
                return Err(path_too_long());
            }
            listing_bytes += (path.len() + name.to_bytes().len()) as u64 + ENTRY_OVERHEAD;
            if entries.len().is_multiple_of(CHUNK_ENTRIES) {
                self.count_listing(std::mem::take(&mut listing_bytes))?;
            }
            entries.push(Named { name: names.push(name), inode: entry.ino(), kind: entry.file_type() });
        }
        self.count_listing(listing_bytes)?;
        Ok((names, entries))
    }

    pub fn look_at(
        &self,
        listed: &Arc<Listed>,
        range: std::ops::Range<usize>,
        scratch: &mut Scratch,
    ) -> Result<(), Fault> {
        let count = range.len();
        let mut records = Vec::with_capacity(count);
        let mut inner = Vec::new();
        let mut files = 0;
        for named in &listed.entries[range] {
            let name = listed.names.bytes(named.name);
            let looked = self.record(listed, *named, scratch);
            let Some(mut record) = looked.map_err(|stop| match stop {
                Stop::Errno(errno) => self.failure(errno, listed.anchor, &listed.path, name),
                Stop::Fault(fault) => fault,
            })?
            else {
                continue;
            };
            files += u64::from(record.kind == EntryKind::Regular);
            if record.inside.is_some() {
                let id = self.new_directory();
                record.inside = Some(id);
                let path =
                    if listed.path.is_empty() { name.to_vec() } else { [&listed.path, &b"/"[..], name].concat() };
                inner.push(Task::Enter { id, anchor: listed.anchor, path });
            }
            records.push(record);
        }
        let before = self.files.fetch_add(files, Ordering::Relaxed);
        if before + files > self.limits.files_max {
            let message = format!("more than {} files", self.limits.files_max);
            return Err(Fault::new(ErrorCode::Limit, message));
        }
        if !inner.is_empty() {
            self.add_tasks(inner);
        }
        let mut all = listed.records.lock().expect("a walker panicked");
        all.found.append(&mut records);
        all.looked_at += count;
        if all.looked_at == listed.entries.len() {
            let path = self.absolute(listed.anchor, &listed.path);
            scratch.finds.pieces.push((listed.id, Piece::encode(&path, &listed.names, &all.found)));
        }
        Ok(())
    }

    fn absolute(&self, anchor: usize, path: &[u8]) -> Vec<u8> {
        let start = &self.anchors[anchor].path;
        match path {
            [] => start.clone(),
            _ if start == b"/" => [b"/", path].concat(),
            _ => [start, &b"/"[..], path].concat(),
        }
    }

    pub fn count_listing(&self, bytes: u64) -> Result<(), Fault> {
        let before = self.listing_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.limits.listing_max { Err(too_long(self.limits.listing_max)) } else { Ok(()) }
    }

    /// What is to be read at most: a sparse file costs nothing on the disk and would be read for hours.
    pub fn count_hashed(&self, bytes: u64) -> Result<(), Errno> {
        let before = self.hashed_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before.saturating_add(bytes) > MANIFEST_HASHED_MAX { Err(Errno::FBIG) } else { Ok(()) }
    }

    fn failure(&self, errno: Errno, anchor: usize, path: &[u8], name: &[u8]) -> Fault {
        let parts = [path, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/');
        let below = if parts.is_empty() { "the starting point".into() } else { parts.escape_ascii().to_string() };
        let which = if self.anchors.len() > 1 { format!(" of path {}", anchor + 1) } else { String::new() };
        match errno {
            Errno::FBIG => Fault::new(
                ErrorCode::Limit,
                format!("{below}{which}: more than {} GiB to hash", MANIFEST_HASHED_MAX >> 30),
            ),
            _ => Fault::new(ErrorCode::WalkFailed, format!("walk {below}{which}: {}", describe(errno))),
        }
    }
}

fn path_too_long() -> Fault {
    Fault::new(ErrorCode::Limit, format!("a path below the starting point is longer than {PATH_MAX} bytes"))
}
