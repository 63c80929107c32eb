//! Walks a directory tree that may be hostile and may change under our feet: never through links, never onto another
//! mount, one descriptor at a time whatever the depth. Paths are resolved by the kernel from the root's descriptor.

use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, chmod, fchmod, fstat, open, openat2, statat,
};
use rustix::io::{Errno, Result};
use rustix::process::geteuid;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd};

pub const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
pub const SOURCE_FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Permission that the owner needs to list and pass a directory.
const LIST: u32 = 0o500;

/// Opens the root of a tree; its own last component may not be a link.
pub fn open_root(path: &CStr) -> Result<OwnedFd> {
    open(path, DIRECTORY, Mode::empty())
}

/// Opens what `path` names below `root`, through no link and on the same mount.
pub fn open_below(root: &OwnedFd, path: &Path, flags: OFlags) -> Result<OwnedFd> {
    let resolve =
        ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS | ResolveFlags::NO_XDEV;
    openat2(root, path.as_c_str()?, flags, Mode::empty(), resolve)
}

/// Opens what is there although its owner (who we are too) took away the permission. Returns the mode to give back.
pub fn open_unlocked(root: &OwnedFd, path: &Path, flags: OFlags, needed: u32) -> Result<(OwnedFd, Option<Mode>)> {
    match open_below(root, path, flags) {
        Ok(opened) => match lacking(&opened, needed)? {
            Some(mode) => {
                fchmod(&opened, mode | Mode::from_raw_mode(needed))?;
                Ok((opened, Some(mode)))
            }
            None => Ok((opened, None)),
        },
        Err(Errno::ACCESS) => {
            let pinned = open_below(root, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC)?;
            let mode = lacking(&pinned, needed)?.ok_or(Errno::ACCESS)?;
            chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), mode | Mode::from_raw_mode(needed))?;
            Ok((open_below(root, path, flags)?, Some(mode)))
        }
        Err(error) => Err(error),
    }
}

/// The present mode when an ordinary owner lacks a permission that it could give itself.
fn lacking(opened: &OwnedFd, needed: u32) -> Result<Option<Mode>> {
    let stat = fstat(opened)?;
    let user = geteuid();
    let lacks = !user.is_root() && stat.st_uid == user.as_raw() && stat.st_mode & needed != needed;
    Ok(lacks.then(|| Mode::from_raw_mode(stat.st_mode & 0o7777)))
}

/// A path below a tree's root, grown and shortened by one name at a time. Empty: the root.
#[derive(Debug, Default)]
pub struct Path {
    bytes: Vec<u8>,
}

impl Path {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Appends a name.
    pub fn push(&mut self, name: &CStr) {
        if !self.bytes.is_empty() {
            self.bytes.push(b'/');
        }
        self.bytes.extend_from_slice(name.to_bytes());
    }

    /// Drops the last name.
    pub fn pop(&mut self) {
        let end = self.bytes.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
        self.bytes.truncate(end);
    }

    /// This path with a name appended.
    pub fn joined(&self, name: &CStr) -> Self {
        let mut path = Self { bytes: self.bytes.clone() };
        path.push(name);
        path
    }

    /// For system calls; `.` for the root.
    pub fn as_c_str(&self) -> Result<CString> {
        let bytes: &[u8] = if self.bytes.is_empty() { b"." } else { &self.bytes };
        CString::new(bytes).map_err(|_| Errno::INVAL)
    }
}

/// Where an entry lies: its directory, open, and its name there.
pub struct Place<'a> {
    pub directory: &'a OwnedFd,
    pub path: &'a Path,
    pub name: &'a CStr,
}

/// What is done along a walk. In each directory: `enter`, `entry` for everything but directories, then the
/// subdirectories, then `leave`.
pub trait Visitor {
    /// A directory, the root first.
    fn enter(&mut self, path: &Path, stat: &Stat) -> Result<()>;
    /// A file, link or special of the directory that was entered last.
    fn entry(&mut self, place: &Place<'_>, stat: &Stat) -> Result<()>;
    /// The directory and everything in it was visited. `stat` is what `enter` saw.
    fn leave(&mut self, path: &Path, stat: &Stat) -> Result<()>;
}

struct Frame {
    stat: Stat,
    subdirectories: Vec<CString>,
    /// The open directory and its own mode, when that had to be widened for the walk.
    widened: Option<(OwnedFd, Mode)>,
}

/// Walks everything below `root`. `TOOBIG`: more than `entries_max` entries; `NAMETOOLONG`: deeper than a path can say.
/// Returns the number of entries without the root.
pub fn walk(root: &OwnedFd, entries_max: u32, visitor: &mut impl Visitor) -> Result<u32> {
    let mut walk = Walk { root, entries_max, entries: 0, path: Path::default(), frames: Vec::new() };
    let outcome = walk.run(visitor);
    // Whatever happened, directories get back the modes that their owner gave them.
    for frame in walk.frames.drain(..) {
        restore(&frame.widened);
    }
    outcome.map(|()| walk.entries)
}

struct Walk<'a> {
    root: &'a OwnedFd,
    entries_max: u32,
    entries: u32,
    path: Path,
    frames: Vec<Frame>,
}

impl Walk<'_> {
    fn run(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        self.descend(visitor)?;
        while let Some(frame) = self.frames.last_mut() {
            if let Some(name) = frame.subdirectories.pop() {
                self.path.push(&name);
                match self.descend(visitor) {
                    Ok(()) => {}
                    // Gone, or something else by now: the tree is in use, and this is what it holds at this moment.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV) => self.path.pop(),
                    Err(error) => return Err(error),
                }
            } else if let Some(frame) = self.frames.pop() {
                restore(&frame.widened);
                visitor.leave(&self.path, &frame.stat)?;
                self.path.pop();
            }
        }
        Ok(())
    }

    fn descend(&mut self, visitor: &mut impl Visitor) -> Result<()> {
        let (directory, own_mode) = open_unlocked(self.root, &self.path, DIRECTORY, LIST)?;
        let mut stat = fstat(&directory)?;
        if let Some(mode) = own_mode {
            stat.st_mode = (stat.st_mode & !0o7777) | mode.as_raw_mode();
        }
        let listed = visitor.enter(&self.path, &stat).and_then(|()| self.list(&directory, visitor));
        let frame = Frame { stat, subdirectories: Vec::new(), widened: own_mode.map(|mode| (directory, mode)) };
        match listed {
            Ok(subdirectories) => {
                self.frames.push(Frame { subdirectories, ..frame });
                Ok(())
            }
            Err(error) => {
                restore(&frame.widened);
                Err(error)
            }
        }
    }

    fn list(&mut self, directory: &OwnedFd, visitor: &mut impl Visitor) -> Result<Vec<CString>> {
        let mut subdirectories = Vec::new();
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let stat = match statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                Err(Errno::NOENT) => continue,
                result => result?,
            };
            if self.entries == self.entries_max {
                return Err(Errno::TOOBIG);
            }
            self.entries += 1;
            if FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
                subdirectories.push(name.to_owned());
            } else {
                visitor.entry(&Place { directory, path: &self.path, name }, &stat)?;
            }
        }
        Ok(subdirectories)
    }
}

/// A directory that went away meanwhile needs no mode.
fn restore(widened: &Option<(OwnedFd, Mode)>) {
    if let Some((directory, mode)) = widened {
        let _ = fchmod(directory, *mode);
    }
}
