//! From an archive to a tree. The archive may be hostile: every name and every target is checked, no link is followed,
//! devices are refused, and nothing appears outside of the directory that it goes into.

use crate::errno;
use crate::parents::{make_directory, open_directory};
use crate::root::{CheckedPath, Links, Root};
use crate::write::copy;
use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Timespec, Timestamps, fchmod, futimens, linkat, openat, statat, symlinkat,
    unlinkat,
};
use rustix::io::Errno;
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use tar::{Archive, Entry, EntryType, PaxExtensions};
use wire::file_request::FileSummary;
use wire::limits::{ARCHIVE_ENTRIES_MAX, PATH_MAX};
use wire::{ErrorCode, Fault};

/// Bytes of one extension header: two paths, their keys, times and the like.
const EXTENSION_MAX: u64 = 64 << 10;
/// Directories whose modes are kept to be set at the end.
const DIRECTORIES_MAX: usize = 200_000;

/// Unpacks `content` into the directory `path`, which is made when it is missing. Files replace files; owners are not
/// taken over. Errors: `BAD_ARGUMENT` (no tar archive, a name or a target that leads out, a device), `NOT_REGULAR`,
/// `NOT_DIRECTORY`, `SYMLINK` (a link on the way), `DENIED`, `NO_SPACE`, `LIMIT`, `CANCELLED`. What came whole before
/// the failure stays.
pub fn unpack(root: &Root, path: &[u8], content: &mut impl Read) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(path)?;
    make_directory(root, &path, 0o755)?;
    let base = root.open(&path, OFlags::PATH | OFlags::DIRECTORY).map_err(|errno| path.fault(errno, "unpack into"))?;
    let cut = Cell::new(false);
    let mut unpacker =
        Unpacker { base: Root::new(base, Links::Refuse), directories: Vec::new(), summary: FileSummary::default() };
    let mut archive = Archive::new(Watched { inner: content, cut: &cut });
    let result = unpacker.entries(&mut archive);
    if cut.get() {
        return Err(Fault::new(ErrorCode::Cancelled, "the content was cut off"));
    }
    result?;
    unpacker.settle_directories()?;
    // Padding after the end.
    let drained = io::copy(&mut archive.into_inner(), &mut io::sink());
    drained.map_err(|_| Fault::new(ErrorCode::Cancelled, "the content was cut off"))?;
    Ok(unpacker.summary)
}

/// Notes that the content itself could not be read, which is not the archive's fault.
struct Watched<'a, R> {
    inner: &'a mut R,
    cut: &'a Cell<bool>,
}

impl<R: Read> Read for Watched<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.inner.read(buffer).inspect_err(|error| {
            if error.kind() != io::ErrorKind::Interrupted {
                self.cut.set(true);
            }
        })
    }
}

/// What extension headers say about the next entry.
#[derive(Default)]
struct Extensions {
    name: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
}

struct Unpacker {
    base: Root,
    /// Directories of the archive with their modes, which are set last: one may forbid to write in it.
    directories: Vec<(CheckedPath, u32)>,
    summary: FileSummary,
}

impl Unpacker {
    fn entries<R: Read>(&mut self, archive: &mut Archive<R>) -> Result<(), Fault> {
        let mut extensions = Extensions::default();
        // Raw: the crate would take an extension of any length into memory.
        for entry in archive.entries().map_err(not_an_archive)?.raw(true) {
            let mut entry = entry.map_err(not_an_archive)?;
            self.summary.entries += 1;
            if self.summary.entries > ARCHIVE_ENTRIES_MAX {
                return Err(Fault::new(
                    ErrorCode::Limit,
                    format!("an archive of more than {ARCHIVE_ENTRIES_MAX} names"),
                ));
            }
            match entry.header().entry_type() {
                EntryType::GNULongName => extensions.name = Some(terminated(extension(&mut entry)?)),
                EntryType::GNULongLink => extensions.target = Some(terminated(extension(&mut entry)?)),
                EntryType::XHeader => pax(&extension(&mut entry)?, &mut extensions)?,
                EntryType::XGlobalHeader => {
                    extension(&mut entry)?;
                }
                _ => self.entry(&mut entry, std::mem::take(&mut extensions))?,
            }
        }
        Ok(())
    }

    fn entry<R: Read>(&mut self, entry: &mut Entry<'_, R>, extensions: Extensions) -> Result<(), Fault> {
        let name = extensions.name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let path = inside(&name)?;
        let kind = entry.header().entry_type();
        let mode = entry.header().mode().map_err(not_an_archive)? & 0o777;
        match kind {
            EntryType::Directory => self.directory(path, mode),
            // The directory itself, under any kind but its own, is no name.
            _ if path.split().is_none() => Err(refused(&name, "it has no name")),
            EntryType::Regular | EntryType::Continuous => self.file(&path, mode, entry),
            EntryType::Symlink => {
                let target = extensions.target.or_else(|| entry.link_name_bytes().map(Into::into)).unwrap_or_default();
                self.symbolic_link(&path, &target)
            }
            EntryType::Link => {
                let target = extensions.target.or_else(|| entry.link_name_bytes().map(Into::into)).unwrap_or_default();
                self.hard_link(&path, &inside(&target)?)
            }
            _ => Err(refused(&name, "its kind is not unpacked")),
        }
    }

    fn directory(&mut self, path: CheckedPath, mode: u32) -> Result<(), Fault> {
        if path.split().is_none() {
            return Ok(());
        }
        if self.directories.len() >= DIRECTORIES_MAX {
            return Err(Fault::new(ErrorCode::Limit, format!("an archive of more than {DIRECTORIES_MAX} directories")));
        }
        make_directory(&self.base, &path, mode | 0o700)?;
        self.directories.push((path, mode));
        Ok(())
    }

    fn file<R: Read>(&mut self, path: &CheckedPath, mode: u32, entry: &mut Entry<'_, R>) -> Result<(), Fault> {
        let at = |errno| path.fault(errno, "unpack");
        let (directory, name) = self.place(path)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file: File = openat(&directory, name, flags, Mode::RUSR | Mode::WUSR).map_err(at)?.into();
        let expected = entry.size();
        let copied = copy(entry, &file, u64::MAX, path).and_then(|size| {
            if size == expected { Ok(size) } else { Err(refused(name, "the archive ends within it")) }
        });
        let size = copied.inspect_err(|_| {
            // A part of a file would pass for all of it.
            let _ = unlinkat(&directory, name, AtFlags::empty());
        })?;
        let seconds = entry.header().mtime().unwrap_or(0);
        let time = Timespec { tv_sec: i64::try_from(seconds).unwrap_or(0), tv_nsec: 0 };
        futimens(&file, &Timestamps { last_access: time, last_modification: time }).map_err(at)?;
        fchmod(&file, Mode::from_raw_mode(mode)).map_err(at)?;
        self.summary.size += size;
        Ok(())
    }

    fn symbolic_link(&mut self, path: &CheckedPath, target: &[u8]) -> Result<(), Fault> {
        check_target(path, target)?;
        let (directory, name) = self.place(path)?;
        symlinkat(target, &directory, name).map_err(|errno| path.fault(errno, "unpack"))
    }

    fn hard_link(&mut self, path: &CheckedPath, target: &CheckedPath) -> Result<(), Fault> {
        let at = |errno| path.fault(errno, "unpack");
        let (above, target_name) = target.split().ok_or_else(|| at(Errno::ISDIR))?;
        let from = open_directory(&self.base, &above, false)?;
        let stat = statat(&from, target_name, AtFlags::SYMLINK_NOFOLLOW).map_err(at)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(at(Errno::NXIO));
        }
        if path == target {
            return Ok(());
        }
        let (directory, name) = self.place(path)?;
        linkat(&from, target_name, &directory, name, AtFlags::empty()).map_err(at)
    }

    /// The directory of a name that is free now: what was not a directory made room.
    fn place<'a>(&self, path: &'a CheckedPath) -> Result<(OwnedFd, &'a [u8]), Fault> {
        let (parent, name) = path.split().ok_or_else(|| path.fault(Errno::ISDIR, "unpack"))?;
        let directory = open_directory(&self.base, &parent, true)?;
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok((directory, name)),
            Err(errno) => Err(path.fault(errno, "unpack over")),
        }
    }

    fn settle_directories(&mut self) -> Result<(), Fault> {
        // The inner ones first, which an outer one may forbid to reach.
        for (path, mode) in self.directories.drain(..).rev() {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let settled = self.base.open(&path, flags).and_then(|it| fchmod(it, Mode::from_raw_mode(mode)));
            settled.map_err(|errno| path.fault(errno, "unpack"))?;
        }
        Ok(())
    }
}

/// A name of the archive as a path from where it is unpacked.
fn inside(name: &[u8]) -> Result<CheckedPath, Fault> {
    if name.first() == Some(&b'/') {
        return Err(refused(name, "it is absolute"));
    }
    if name.split(|byte| *byte == b'/').any(|part| part == b"..") {
        return Err(refused(name, "it has a .. in it"));
    }
    CheckedPath::new(&[b"/", name].concat())
}

/// A target is relative, and climbs only at its beginning and never above where the archive goes; so a chain of such
/// links cannot lead out either.
fn check_target(path: &CheckedPath, target: &[u8]) -> Result<(), Fault> {
    let refuse = |why| Err(refused(target, why));
    if target.is_empty() || target.len() >= PATH_MAX || target.contains(&0) {
        return refuse("it is no target of a link");
    }
    if target[0] == b'/' {
        return refuse("the target of a link is absolute");
    }
    let mut depth = path.relative().iter().filter(|byte| **byte == b'/').count();
    let mut has_descended = false;
    for part in target.split(|byte| *byte == b'/').filter(|part| !matches!(*part, b"" | b".")) {
        if part != b".." {
            has_descended = true;
        } else if has_descended || depth == 0 {
            return refuse("the target of a link leads out");
        } else {
            depth -= 1;
        }
    }
    Ok(())
}

fn extension<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, Fault> {
    if entry.size() > EXTENSION_MAX {
        return Err(Fault::bad_argument("an extension header of the archive is too long"));
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes).map_err(not_an_archive)?;
    Ok(bytes)
}

/// Up to the NUL that ends a long name.
fn terminated(mut name: Vec<u8>) -> Vec<u8> {
    if let Some(end) = name.iter().position(|byte| *byte == 0) {
        name.truncate(end);
    }
    name
}

fn pax(bytes: &[u8], extensions: &mut Extensions) -> Result<(), Fault> {
    for field in PaxExtensions::new(bytes) {
        let field = field.map_err(not_an_archive)?;
        match field.key_bytes() {
            b"path" => extensions.name = Some(field.value_bytes().to_vec()),
            b"linkpath" => extensions.target = Some(field.value_bytes().to_vec()),
            // They say that what follows is not what its header says.
            b"size" => return Err(Fault::bad_argument("the archive has a file of a size beyond its header")),
            key if key.starts_with(b"GNU.sparse") => return Err(Fault::bad_argument("the archive has a sparse file")),
            _ => {}
        }
    }
    Ok(())
}

fn refused(name: &[u8], why: &str) -> Fault {
    let shown = &name[..name.len().min(PATH_MAX)];
    Fault::bad_argument(format!("the archive is refused: {}: {why}", shown.escape_ascii()))
}

fn not_an_archive(error: io::Error) -> Fault {
    Fault::bad_argument(format!("not a tar archive: {}", errno_text(&error)))
}

fn errno_text(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(_) => errno::describe(errno::of(error)),
        None => error.to_string(),
    }
}
