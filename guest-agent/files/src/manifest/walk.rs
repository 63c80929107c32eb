//! The walk: a few threads that read directories, look at each entry and hash what is not known. It follows no
//! link, stays on the file system it started on, opens only regular files, and either sees everything or fails.

use super::WalkReport;
use super::cache::{Cache, Cursor, FileId, Known, Learned, Sha256, Stamp};
use super::listing::too_long;
use super::piece::{DirectoryId, Fingerprint, Name, Names, Piece, Record};
use super::writers::{has_no_writer, stamps_changes};
use crate::errno::describe;
use crate::root::{CheckedPath, Root, resolve_at};
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RawDir, ResolveFlags, Statx, StatxFlags, openat, readlinkat_raw, statx,
};
use rustix::io::Errno;
use sha2::Digest;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};
use wire::entry::{Entry, EntryKind};
use wire::limits::PATH_MAX;
use wire::{ErrorCode, Fault};

/// Entries of one directory that one thread handles at a time; a larger directory is shared.
const CHUNK_ENTRIES: usize = 512;
const READ_BUFFER_SIZE: usize = 256 << 10;
const DIRECTORY_BUFFER_SIZE: usize = 64 << 10;
/// Bytes an entry adds to a listing beside its path, at least.
const ENTRY_OVERHEAD: u64 = 12;
/// Times an entry is looked at again when it is replaced between two looks.
const LOOKS: usize = 8;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub files_max: u64,
    pub listing_max: u64,
}

pub struct Walked {
    /// The starting points themselves; the content of each is the piece of the same index.
    pub starts: Vec<Piece>,
    /// By directory.
    pub pieces: Vec<Piece>,
    pub learned: Vec<Learned>,
    pub generation: u32,
    pub report: WalkReport,
}

/// Walks every starting point. Faults as `Manifests::run` has them.
pub fn walk(
    root: &Root,
    starts: &[CheckedPath],
    cache: &Cache,
    limits: Limits,
    threads: usize,
    cancel: &AtomicBool,
) -> Result<Walked, Fault> {
    // Before the first file is looked at: a write during the walk leaves a timestamp that is not older than this.
    let taken_ns = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as i128);
    let walk = Walk {
        anchors: starts.iter().map(|path| Anchor::open(root, path)).collect::<Result<_, _>>()?,
        cache,
        generation: cache.next_generation(),
        taken_ns,
        limits,
        cancel,
        files: AtomicU64::new(0),
        listing_bytes: AtomicU64::new(0),
        state: Mutex::new(State::default()),
        changed: Condvar::new(),
    };
    for anchor in 0..walk.anchors.len() {
        let id = walk.new_directory();
        walk.lock().tasks.push(Task::Enter { id, anchor, path: Vec::new() });
    }
    let finds: Vec<Finds> = std::thread::scope(|scope| {
        // Fewer threads than wished for (a process limit, say) make the walk slower, not wrong.
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, || walk.work()).ok();
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let own = walk.work();
        others.into_iter().map(|thread| thread.join().expect("a walker panicked")).chain([own]).collect()
    });
    walk.finish(finds)
}

/// A starting point, open.
struct Anchor {
    path: Vec<u8>,
    directory: OwnedFd,
    stat: Statx,
    /// Whether fingerprints of this file system may be remembered.
    remember: bool,
}

impl Anchor {
    fn open(root: &Root, path: &CheckedPath) -> Result<Self, Fault> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let directory = root.open(path, flags).map_err(|errno| path.fault(why_not(root, path, errno), "walk"))?;
        let stat = look(directory.as_fd(), c"").map_err(|errno| path.fault(errno, "walk"))?;
        Ok(Self { path: path.absolute(), remember: stamps_changes(&directory), directory, stat })
    }
}

impl Anchor {
    /// The entry of the starting point itself.
    fn piece(&self) -> Piece {
        let mut piece = Piece::default();
        piece.push(&Entry {
            path: &self.path,
            kind: EntryKind::Directory,
            fingerprint: &[],
            size: 0,
            mode: (self.stat.stx_mode & 0o7777).into(),
            uid: self.stat.stx_uid,
            gid: self.stat.stx_gid,
        });
        piece
    }
}

/// With O_DIRECTORY the kernel says of a symbolic link only that it is no directory.
fn why_not(root: &Root, path: &CheckedPath, errno: Errno) -> Errno {
    let link = root.open(path, OFlags::PATH | OFlags::NOFOLLOW).and_then(|link| look(link.as_fd(), c""));
    match link {
        Ok(stat) if FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Symlink => Errno::LOOP,
        _ => errno,
    }
}

enum Task {
    /// Read a directory, `path` relative to its anchor.
    Enter { id: DirectoryId, anchor: usize, path: Vec<u8> },
    /// Look at a part of a large directory's entries.
    Look(Arc<Listed>, std::ops::Range<usize>),
}

/// A directory that was read and whose entries are to be looked at.
struct Listed {
    id: DirectoryId,
    anchor: usize,
    path: Vec<u8>,
    descriptor: OwnedFd,
    names: Names,
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
struct Named {
    name: Name,
    inode: u64,
    kind: FileType,
}

#[derive(Default)]
struct State {
    tasks: Vec<Task>,
    working: usize,
    directories: u32,
    failed: Option<Fault>,
}

/// What one thread has found.
#[derive(Default)]
struct Finds {
    pieces: Vec<(DirectoryId, Piece)>,
    learned: Vec<Learned>,
    report: WalkReport,
}

/// A thread's own space.
struct Scratch {
    buffer: Vec<u8>,
    finds: Finds,
    cursor: Cursor,
}

struct Walk<'a> {
    anchors: Vec<Anchor>,
    cache: &'a Cache,
    generation: u32,
    taken_ns: i128,
    limits: Limits,
    cancel: &'a AtomicBool,
    files: AtomicU64,
    listing_bytes: AtomicU64,
    state: Mutex<State>,
    changed: Condvar,
}

impl Walk<'_> {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("a walker panicked")
    }

    fn new_directory(&self) -> DirectoryId {
        let mut state = self.lock();
        state.directories += 1;
        state.directories - 1
    }

    /// One thread's part: tasks until there are none and nobody can make more.
    fn work(&self) -> Finds {
        let mut scratch =
            Scratch { buffer: vec![0; READ_BUFFER_SIZE], finds: Finds::default(), cursor: Cursor::default() };
        while let Some(task) = self.next_task() {
            let done = match task {
                _ if self.cancel.load(Ordering::Relaxed) => {
                    Err(Fault::new(ErrorCode::Cancelled, "the walk was given up"))
                }
                Task::Enter { id, anchor, path } => self.enter(id, anchor, path, &mut scratch),
                Task::Look(listed, range) => self.look_at(&listed, range, &mut scratch),
            };
            let mut state = self.lock();
            state.working -= 1;
            if let Err(fault) = done {
                state.failed.get_or_insert(fault);
                state.tasks.clear();
            }
            if state.working == 0 && state.tasks.is_empty() {
                self.changed.notify_all();
            }
        }
        scratch.finds
    }

    fn next_task(&self) -> Option<Task> {
        let mut state = self.lock();
        loop {
            if state.failed.is_some() {
                return None;
            }
            if let Some(task) = state.tasks.pop() {
                state.working += 1;
                return Some(task);
            }
            if state.working == 0 {
                return None;
            }
            state = self.changed.wait(state).expect("a walker panicked");
        }
    }

    fn add_tasks(&self, tasks: impl IntoIterator<Item = Task>) {
        self.lock().tasks.extend(tasks);
        self.changed.notify_all();
    }

    fn enter(&self, id: DirectoryId, anchor: usize, path: Vec<u8>, scratch: &mut Scratch) -> Result<(), Fault> {
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

    fn look_at(&self, listed: &Arc<Listed>, range: std::ops::Range<usize>, scratch: &mut Scratch) -> Result<(), Fault> {
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

    /// What one entry is, or `None` when it is gone. `inside` is set, to any value, on a directory to enter.
    fn record(&self, listed: &Listed, named: Named, scratch: &mut Scratch) -> Result<Option<Record>, Stop> {
        let directory = listed.descriptor.as_fd();
        let name = listed.names.c_str(named.name);
        let anchor = &self.anchors[listed.anchor];
        let id = FileId { device: device(&anchor.stat), inode: named.inode };
        // A file that cannot be known is opened at once; its descriptor then tells the rest.
        let known = match named.kind {
            FileType::RegularFile | FileType::Unknown => self.cache.find(id, &mut scratch.cursor),
            _ => None,
        };
        let mut straight = named.kind == FileType::RegularFile && known.is_none();
        for _ in 0..LOOKS {
            let stat = if std::mem::take(&mut straight) {
                None
            } else {
                match look(directory, name) {
                    Ok(stat) => Some(stat),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(errno.into()),
                }
            };
            let record = |stat: &Statx, kind, fingerprint| Record {
                name: named.name,
                kind,
                mode: stat.stx_mode & 0o7777,
                uid: stat.stx_uid,
                gid: stat.stx_gid,
                size: if kind == EntryKind::Directory { 0 } else { stat.stx_size },
                fingerprint,
                inside: None,
            };
            if let Some(stat) = &stat {
                match FileType::from_raw_mode(stat.stx_mode.into()) {
                    FileType::RegularFile => {}
                    FileType::Directory => {
                        let inside = (device(stat) == device(&anchor.stat)).then_some(0);
                        return Ok(Some(Record { inside, ..record(stat, EntryKind::Directory, Fingerprint::None) }));
                    }
                    FileType::Symlink => match self.target(directory, name, &mut scratch.buffer)? {
                        Some(target) => return Ok(Some(record(stat, EntryKind::Symlink, Fingerprint::Target(target)))),
                        None => continue,
                    },
                    _ => return Ok(Some(record(stat, EntryKind::Other, Fingerprint::None))),
                }
                let same = stat.stx_ino == named.inode && device(stat) == id.device;
                if let Some(fingerprint) = known.filter(|_| same).and_then(|known| self.trust(known, stat, scratch)) {
                    return Ok(Some(record(stat, EntryKind::Regular, Fingerprint::Sha256(fingerprint))));
                }
            }
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
            let file = match openat(directory, name, flags, Mode::empty()) {
                Ok(file) => file,
                Err(Errno::ACCESS | Errno::PERM) => match &stat {
                    Some(stat) => return Ok(Some(record(stat, EntryKind::Regular, Fingerprint::None))),
                    None => continue,
                },
                // Gone, or replaced by something else: look again.
                Err(Errno::NOENT | Errno::LOOP | Errno::NXIO | Errno::NODEV) => continue,
                Err(errno) => return Err(errno.into()),
            };
            let opened = look(file.as_fd(), c"")?;
            if FileType::from_raw_mode(opened.stx_mode.into()) != FileType::RegularFile {
                continue;
            }
            // Where directories tell other inodes than files do (overlays), only now it shows that it is known.
            let opened_id = FileId { device: device(&opened), inode: opened.stx_ino };
            let elsewhere = if opened_id == id { None } else { self.cache.find(opened_id, &mut Cursor::default()) };
            let fingerprint = match elsewhere.and_then(|known| self.trust(known, &opened, scratch)) {
                Some(fingerprint) => fingerprint,
                None => self.read(anchor, file.as_fd(), &opened, scratch)?,
            };
            return Ok(Some(record(&opened, EntryKind::Regular, Fingerprint::Sha256(fingerprint))));
        }
        Err(Errno::AGAIN.into())
    }

    /// What is remembered of a file, if it can have no other content now.
    fn trust(&self, known: &Known, stat: &Statx, scratch: &mut Scratch) -> Option<Sha256> {
        let fingerprint = known.fingerprint(&Stamp::of(stat), self.generation)?;
        scratch.finds.report.known += 1;
        Some(fingerprint)
    }

    /// Reads a file and remembers its fingerprint if any later change must show.
    fn read(&self, anchor: &Anchor, file: BorrowedFd<'_>, stat: &Statx, scratch: &mut Scratch) -> Result<Sha256, Stop> {
        let stamp = Stamp::of(stat);
        let settled = device(stat) == device(&anchor.stat) && stamp.is_settled_before(self.taken_ns);
        // Asked before the content is read: who opens the file later will move its stamp.
        let lasting = anchor.remember && settled && has_no_writer(file);
        let fingerprint = self.hash(file, stat, scratch)?;
        scratch.finds.report.hashed += 1;
        if lasting {
            let file = FileId { device: device(stat), inode: stat.stx_ino };
            scratch.finds.learned.push(Learned { file, stamp, fingerprint });
        }
        Ok(fingerprint)
    }

    /// Hashes what the file held when it was opened; a writer that keeps appending cannot hold the walk.
    fn hash(&self, file: BorrowedFd<'_>, stat: &Statx, scratch: &mut Scratch) -> Result<Sha256, Stop> {
        let mut hash = sha2::Sha256::new();
        let mut left = stat.stx_size;
        while left > 0 {
            if self.cancel.load(Ordering::Relaxed) {
                return Err(Stop::Fault(Fault::new(ErrorCode::Cancelled, "the walk was given up")));
            }
            let size = left.min(READ_BUFFER_SIZE as u64) as usize;
            match rustix::io::read(file, &mut scratch.buffer[..size]) {
                Ok(0) => break,
                Ok(count) => {
                    hash.update(&scratch.buffer[..count]);
                    left -= count as u64;
                }
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(hash.finalize().into())
    }

    /// A symbolic link's target, or `None` when it is no link any more.
    fn target(
        &self,
        directory: BorrowedFd<'_>,
        name: &std::ffi::CStr,
        buffer: &mut [u8],
    ) -> Result<Option<Box<[u8]>>, Stop> {
        match readlinkat_raw(directory, name, &mut buffer[..PATH_MAX]) {
            Ok(length) => {
                self.count_listing(length as u64).map_err(Stop::Fault)?;
                Ok(Some(buffer[..length].into()))
            }
            Err(Errno::NOENT | Errno::INVAL) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn count_listing(&self, bytes: u64) -> Result<(), Fault> {
        let before = self.listing_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > self.limits.listing_max { Err(too_long(self.limits.listing_max)) } else { Ok(()) }
    }

    fn failure(&self, errno: Errno, anchor: usize, path: &[u8], name: &[u8]) -> Fault {
        let parts = [path, name].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(&b'/');
        let below = if parts.is_empty() { "the starting point".into() } else { parts.escape_ascii().to_string() };
        let which = if self.anchors.len() > 1 { format!(" of path {}", anchor + 1) } else { String::new() };
        Fault::new(ErrorCode::WalkFailed, format!("walk {below}{which}: {}", describe(errno)))
    }

    fn finish(self, finds: Vec<Finds>) -> Result<Walked, Fault> {
        let state = self.state.into_inner().expect("a walker panicked");
        if let Some(fault) = state.failed {
            return Err(fault);
        }
        let mut walked = Walked {
            starts: self.anchors.iter().map(Anchor::piece).collect(),
            pieces: Vec::new(),
            learned: Vec::new(),
            generation: self.generation,
            report: WalkReport::default(),
        };
        walked.pieces.resize_with(state.directories as usize, Piece::default);
        for mut find in finds {
            for (directory, piece) in find.pieces {
                walked.pieces[directory as usize] = piece;
            }
            walked.learned.append(&mut find.learned);
            walked.report.hashed += find.report.hashed;
            walked.report.known += find.report.known;
        }
        Ok(walked)
    }
}

/// Why an entry could not be recorded.
enum Stop {
    Errno(Errno),
    Fault(Fault),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

fn path_too_long() -> Fault {
    Fault::new(ErrorCode::Limit, format!("a path below the starting point is longer than {PATH_MAX} bytes"))
}

/// The entry's own metadata; with an empty name the descriptor's.
fn look(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT | AtFlags::EMPTY_PATH;
    statx(directory, name, flags, StatxFlags::BASIC_STATS)
}

fn device(stat: &Statx) -> u64 {
    u64::from(stat.stx_dev_major) << 32 | u64::from(stat.stx_dev_minor)
}
