//! The directories that a watch has its eyes on, and what a notice about one of them means.

use super::batch::Batch;
use crate::look::names;
use crate::root::{CheckedPath, Root};
use rustix::fs::inotify::{Event, ReadFlags, WatchFlags, add_watch, remove_watch};
use rustix::fs::{AtFlags, FileType, OFlags, statat};
use rustix::io::Errno;
use rustix::process::fchdir;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use wire::limits::{LIST_ENTRIES_MAX, WATCH_DIRECTORIES_MAX};
use wire::{ErrorCode, Fault};

pub struct Directories<'a> {
    root: &'a Root,
    inotify: &'a OwnedFd,
    top: CheckedPath,
    recursive: bool,
    /// Absolute paths by the kernel's number of their watch.
    paths: HashMap<i32, Vec<u8>>,
    top_watch: i32,
}

impl<'a> Directories<'a> {
    pub fn new(root: &'a Root, inotify: &'a OwnedFd, top: CheckedPath, recursive: bool) -> Self {
        Self { root, inotify, top, recursive, paths: HashMap::new(), top_watch: -1 }
    }

    /// Watches the directory and, when asked, those below it.
    pub fn start(&mut self) -> Result<(), Fault> {
        self.top_watch = self.add(&self.top.clone())?;
        self.complete()
    }

    /// Watches what lies below and is not watched yet.
    pub fn complete(&mut self) -> Result<(), Fault> {
        if self.recursive { self.add_below(self.top.clone(), None) } else { Ok(()) }
    }

    /// Says what a notice means; `false` when the watched directory itself is gone.
    pub fn take(&mut self, notice: &Event<'_>, batch: &mut Batch) -> Result<bool, Fault> {
        let events = notice.events();
        let Some(directory) = self.paths.get(&notice.wd()) else { return Ok(true) };
        if events.intersects(ReadFlags::IGNORED | ReadFlags::DELETE_SELF | ReadFlags::UNMOUNT) {
            self.paths.remove(&notice.wd());
            return Ok(notice.wd() != self.top_watch);
        }
        let Some(name) = notice.file_name() else { return Ok(true) };
        let path = joined(directory, name.to_bytes());
        let is_directory = self.recursive && events.contains(ReadFlags::ISDIR);
        if events.contains(ReadFlags::MOVED_TO) {
            match batch.moved_to(notice.cookie(), path.clone(), events.contains(ReadFlags::ISDIR)) {
                Some(from) if is_directory => self.moved(&from, &path),
                Some(_) => {}
                None if is_directory => self.found(path, batch)?,
                None => {}
            }
            return Ok(true);
        }
        self.settle(batch);
        if events.contains(ReadFlags::MOVED_FROM) {
            batch.moved_from(notice.cookie(), path);
        } else if events.contains(ReadFlags::CREATE) {
            batch.created(path.clone());
            if is_directory {
                self.found(path, batch)?;
            }
        } else if events.contains(ReadFlags::DELETE) {
            batch.removed(path);
        } else if events.intersects(ReadFlags::MODIFY | ReadFlags::ATTRIB) && !self.is_nameless(&path) {
            batch.modified(path);
        }
        Ok(true)
    }

    /// The open half of a move, if there is one, was a move out of sight.
    pub fn settle(&mut self, batch: &mut Batch) {
        if let Some(gone) = batch.settle() {
            self.forget(&gone);
        }
    }

    /// A directory has appeared: it is watched, and what is in it already is told.
    fn found(&mut self, path: Vec<u8>, batch: &mut Batch) -> Result<(), Fault> {
        match CheckedPath::new(&path) {
            Ok(path) => match self.add(&path) {
                Ok(_) => self.add_below(path, Some(batch)),
                Err(fault) if is_gone(&fault) => Ok(()),
                Err(fault) => Err(fault),
            },
            // Deeper than a path can name.
            Err(_) => Ok(()),
        }
    }

    /// Whether a name is only what the kernel calls a file without one, which is written and may get its name later.
    fn is_nameless(&self, path: &[u8]) -> bool {
        let Some((parent, name)) = CheckedPath::new(path).ok().and_then(|path| {
            let (parent, name) = path.split()?;
            Some((parent, name.to_vec()))
        }) else {
            return false;
        };
        let looks_so = name.len() > 1 && name[0] == b'#' && name[1..].iter().all(u8::is_ascii_digit);
        looks_so && {
            let directory = self.root.open(&parent, OFlags::PATH | OFlags::DIRECTORY);
            directory.and_then(|it| statat(&it, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW)).is_err()
        }
    }

    /// Watches every directory below `start`, and tells each name in them to `found`.
    fn add_below(&mut self, start: CheckedPath, mut found: Option<&mut Batch>) -> Result<(), Fault> {
        let mut waiting = vec![start];
        while let Some(path) = waiting.pop() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK;
            let Ok(directory) = self.root.open(&path, flags) else { continue };
            for name in names(directory.as_fd(), LIST_ENTRIES_MAX).unwrap_or_default() {
                let inner = path.join(&name);
                if let Some(batch) = found.as_deref_mut() {
                    batch.created(inner.clone());
                }
                let stat = statat(&directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW);
                if !stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory) {
                    continue;
                }
                let Ok(inner) = CheckedPath::new(&inner) else { continue };
                match self.add(&inner) {
                    Ok(_) => waiting.push(inner),
                    Err(fault) if is_gone(&fault) => {}
                    Err(fault) => return Err(fault),
                }
            }
        }
        Ok(())
    }

    /// Watches one directory and gives the number of its watch.
    fn add(&mut self, path: &CheckedPath) -> Result<i32, Fault> {
        let fault = |errno| path.fault(errno, "watch");
        let directory = self.root.open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK).map_err(fault)?;
        // The kernel takes a name only, and a name may mean something else by now; `.` of the directory cannot.
        fchdir(&directory).map_err(fault)?;
        let flags = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVE
            | WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        let too_many =
            || Fault::new(ErrorCode::TooLarge, format!("watch: more than {WATCH_DIRECTORIES_MAX} directories"));
        let added = add_watch(self.inotify, ".", flags);
        // A directory that somebody stands in is never quite gone, and so its end would not be told.
        self.root.enter().map_err(fault)?;
        let number = match added {
            Err(Errno::NOSPC) => return Err(too_many()),
            result => result.map_err(fault)?,
        };
        self.paths.insert(number, path.absolute());
        if self.paths.len() > WATCH_DIRECTORIES_MAX { Err(too_many()) } else { Ok(number) }
    }

    /// A watched directory has another name, and with it all that is below.
    fn moved(&mut self, from: &[u8], to: &[u8]) {
        for path in self.paths.values_mut() {
            if let Some(rest) = below(path, from) {
                *path = [to, rest].concat();
            }
        }
    }

    /// A directory has been moved out of sight, and with it all that is below.
    fn forget(&mut self, path: &[u8]) {
        let gone: Vec<i32> =
            self.paths.iter().filter(|(_, it)| below(it, path).is_some()).map(|(number, _)| *number).collect();
        for number in gone {
            self.paths.remove(&number);
            // It may have ended by itself.
            let _ = remove_watch(self.inotify, number);
        }
    }
}

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let slash: &[u8] = if directory == b"/" { b"" } else { b"/" };
    [directory, slash, name].concat()
}

/// What follows `ancestor` in `path`, when it is that or lies below it.
fn below<'p>(path: &'p [u8], ancestor: &[u8]) -> Option<&'p [u8]> {
    path.strip_prefix(ancestor).filter(|rest| rest.is_empty() || rest[0] == b'/')
}

/// It went away, or is something else, before it could be watched.
fn is_gone(fault: &Fault) -> bool {
    matches!(fault.code, ErrorCode::NotFound | ErrorCode::NotDirectory | ErrorCode::Symlink | ErrorCode::Denied)
}
