//! Looking at one entry: what it is, and the fingerprint of a file, remembered or taken.

use super::super::cache::{Cursor, FileId, Known, Learned, Sha256, Stamp};
use super::super::piece::{Fingerprint, Record};
use super::super::writers::{give_lease_back, lease_without_writers};
use super::anchor::{Anchor, device, look};
use super::enter::{Listed, Named};
use super::{READ_BUFFER_SIZE, Scratch, Walk, given_up};
use rustix::fs::{FileType, Mode, OFlags, Statx, openat, readlinkat_raw};
use rustix::io::Errno;
use sha2::Digest;
use std::os::fd::{AsFd, BorrowedFd};
use wire::Fault;
use wire::entry::EntryKind;
use wire::limits::PATH_MAX;

/// Times an entry is looked at again when it is replaced between two looks.
const LOOKS: usize = 8;

/// Why an entry could not be recorded.
pub enum Stop {
    Errno(Errno),
    Fault(Fault),
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

impl Walk<'_> {
    /// What one entry is, or `None` when it is gone. `inside` is set, to any value, on a directory to enter.
    pub fn record(&self, listed: &Listed, named: Named, scratch: &mut Scratch) -> Result<Option<Record>, Stop> {
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
        let lasting = anchor.remember && settled && lease_without_writers(file);
        // A file that is read at once is closed soon, which costs no further call; nobody waits longer than that.
        if lasting && stat.stx_size > READ_BUFFER_SIZE as u64 {
            give_lease_back(file);
        }
        let fingerprint = self.hash(file, stat, scratch)?;
        scratch.finds.report.hashed += 1;
        if lasting {
            let file = FileId { device: device(stat), inode: stat.stx_ino };
            scratch.learned.push(Learned { file, stamp, fingerprint });
        }
        Ok(fingerprint)
    }

    /// Hashes what the file held when it was opened; a writer that keeps appending cannot hold the walk.
    fn hash(&self, file: BorrowedFd<'_>, stat: &Statx, scratch: &mut Scratch) -> Result<Sha256, Stop> {
        self.count_hashed(stat.stx_size)?;
        let mut hash = sha2::Sha256::new();
        let mut left = stat.stx_size;
        while left > 0 {
            if self.is_given_up() {
                return Err(Stop::Fault(given_up()));
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
}
