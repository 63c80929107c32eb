//! Copies a tree: files share blocks where the file system can do that, else their data is copied with holes kept;
//! links are recreated, hard links stay hard links, sockets, FIFOs and devices are skipped.

use super::tree::{DIRECTORY, Path, Place, SOURCE_FILE, Visitor, open_below, open_root, open_unlocked, walk};
use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, chownat,
    copy_file_range, fchmod, fchown, fstat, ftruncate, futimens, ioctl_ficlone, linkat, mkdirat, openat, readlinkat,
    seek, symlinkat,
};
use rustix::io::{Errno, Result};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::OwnedFd;

const PRIVATE_DIRECTORY: Mode = Mode::from_raw_mode(0o700);
const PRIVATE_FILE: Mode = Mode::from_raw_mode(0o600);
/// Bytes that one call may copy, so that a growing or huge file cannot hold a call for long.
const COPY_STEP_BYTES: usize = 64 * 1024 * 1024;

/// What a copy did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Apparent bytes of the copied data, holes left out.
    pub bytes: u64,
    /// Entries seen below the root.
    pub entries: u32,
    /// Sockets, FIFOs and devices that were left out.
    pub skipped: u32,
}

/// Copies the tree at `source` to `target`, which must not exist. A failed copy leaves a partial target; its owner
/// removes it by name. `DQUOT`: more than `bytes_max` bytes; `TOOBIG`: more than `entries_max` entries.
pub fn copy(source: &CStr, target: &CStr, bytes_max: u64, entries_max: u32) -> Result<Copied> {
    let source_root = open_root(source)?;
    mkdirat(CWD, target, PRIVATE_DIRECTORY)?;
    let target_root = open_root(target)?;
    let mut copier = Copier {
        source_root: &source_root,
        target_root,
        target: None,
        linked: HashMap::new(),
        reflink: true,
        bytes_max,
        copied: Copied::default(),
    };
    copier.copied.entries = walk(&source_root, entries_max, &mut copier)?;
    Ok(copier.copied)
}

struct Copier<'a> {
    source_root: &'a OwnedFd,
    target_root: OwnedFd,
    /// The copy of the directory that was entered last.
    target: Option<OwnedFd>,
    /// First copy of each file with several names, by device and inode.
    linked: HashMap<(u64, u64), CString>,
    /// Until the file system refuses it once.
    reflink: bool,
    bytes_max: u64,
    copied: Copied,
}

impl Visitor for Copier<'_> {
    fn enter(&mut self, path: &Path, _stat: &Stat) -> Result<()> {
        let at = path.as_c_str()?;
        if path.len() > 0 {
            mkdirat(&self.target_root, &at, PRIVATE_DIRECTORY)?;
        }
        self.target = Some(open_below(&self.target_root, path, DIRECTORY)?);
        Ok(())
    }

    fn entry(&mut self, place: &Place<'_>, stat: &Stat) -> Result<()> {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => self.file(place, stat),
            FileType::Symlink => self.link(place, stat),
            _ => {
                self.copied.skipped += 1;
                Ok(())
            }
        }
    }

    fn leave(&mut self, path: &Path, stat: &Stat) -> Result<()> {
        give(&open_below(&self.target_root, path, DIRECTORY)?, stat)
    }
}

impl Copier<'_> {
    fn target(&self) -> Result<&OwnedFd> {
        self.target.as_ref().ok_or(Errno::BADF)
    }

    fn link(&self, place: &Place<'_>, stat: &Stat) -> Result<()> {
        let content = match readlinkat(place.directory, place.name, Vec::new()) {
            Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
            result => result?,
        };
        let target = self.target()?;
        symlinkat(&content, target, place.name)?;
        let (uid, gid) = (Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)));
        chownat(target, place.name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    fn file(&mut self, place: &Place<'_>, seen: &Stat) -> Result<()> {
        let path = place.path.joined(place.name);
        let key = (seen.st_dev, seen.st_ino);
        if seen.st_nlink > 1
            && let Some(first) = self.linked.get(&key)
        {
            return linkat(&self.target_root, first, self.target()?, place.name, AtFlags::empty());
        }
        let (source, own_mode) = match open_unlocked(self.source_root, &path, SOURCE_FILE, 0o400) {
            // Gone, or something else by now; `NXIO` is a FIFO or device without its other side.
            Err(Errno::NOENT | Errno::LOOP | Errno::XDEV | Errno::NXIO) => return Ok(()),
            result => result?,
        };
        let outcome = self.contents(place, &source, own_mode);
        if let Some(mode) = own_mode {
            let _ = fchmod(&source, mode);
        }
        if outcome? && seen.st_nlink > 1 {
            self.linked.insert(key, path.as_c_str()?);
        }
        Ok(())
    }

    /// False: what was opened is no regular file any more.
    fn contents(&mut self, place: &Place<'_>, source: &OwnedFd, own_mode: Option<Mode>) -> Result<bool> {
        let mut stat = fstat(source)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(false);
        }
        if let Some(mode) = own_mode {
            stat.st_mode = (stat.st_mode & !0o7777) | mode.as_raw_mode();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let target = openat(self.target()?, place.name, flags, PRIVATE_FILE)?;
        if !self.share(source, &target, &stat)? {
            self.copy_data(source, &target, stat.st_size.cast_unsigned())?;
        }
        give(&target, &stat)?;
        Ok(true)
    }

    fn share(&mut self, source: &OwnedFd, target: &OwnedFd, stat: &Stat) -> Result<bool> {
        if !self.reflink || stat.st_size == 0 {
            return Ok(stat.st_size == 0);
        }
        match ioctl_ficlone(target, source) {
            Ok(()) => {
                self.count(stat.st_blocks.cast_unsigned().saturating_mul(512))?;
                Ok(true)
            }
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::XDEV | Errno::INVAL | Errno::NOSYS) => {
                self.reflink = false;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    fn copy_data(&mut self, source: &OwnedFd, target: &OwnedFd, size: u64) -> Result<()> {
        let mut position = 0;
        while position < size {
            let start = match seek(source, SeekFrom::Data(position)) {
                Err(Errno::NXIO) => break,
                result => result?.min(size),
            };
            let end = seek(source, SeekFrom::Hole(start))?.min(size);
            self.count(end - start)?;
            copy_range(source, target, start, end)?;
            position = end.max(start + 1);
        }
        ftruncate(target, size)
    }

    fn count(&mut self, bytes: u64) -> Result<()> {
        self.copied.bytes = self.copied.bytes.saturating_add(bytes);
        if self.copied.bytes > self.bytes_max { Err(Errno::DQUOT) } else { Ok(()) }
    }
}

fn copy_range(source: &OwnedFd, target: &OwnedFd, start: u64, end: u64) -> Result<()> {
    let (mut from, mut to) = (start, start);
    while from < end {
        let step = usize::try_from(end - from).unwrap_or(COPY_STEP_BYTES).min(COPY_STEP_BYTES);
        if copy_file_range(source, Some(&mut from), target, Some(&mut to), step)? == 0 {
            // The file became shorter; its end is a hole in the copy.
            return Ok(());
        }
    }
    Ok(())
}

/// Owner first, because a change of owner clears bits of the mode; time last, because everything else moves it.
fn give(copy: &OwnedFd, stat: &Stat) -> Result<()> {
    fchown(copy, Some(Uid::from_raw(stat.st_uid)), Some(Gid::from_raw(stat.st_gid)))?;
    fchmod(copy, Mode::from_raw_mode(stat.st_mode & 0o7777))?;
    let modified = Timespec { tv_sec: stat.st_mtime, tv_nsec: stat.st_mtime_nsec.cast_signed() };
    let kept = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    futimens(copy, &Timestamps { last_access: kept, last_modification: modified })
}
