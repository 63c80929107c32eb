//! From a tree to an archive: regular files, directories and links, in the order of their names. Other kinds are left
//! out. An archive that cannot be complete ends with a fault, and never with its closing blocks.

use crate::errno;
use crate::look::names;
use crate::read::nobody_reads;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};
use wire::file_request::{FileSummary, Opened};
use wire::limits::{ARCHIVE_DEPTH_MAX, ARCHIVE_ENTRIES_MAX, LIST_ENTRIES_MAX};
use wire::{ErrorCode, Fault};

/// Sends an archive of what is in a directory, named from there, or of one file under its own name, after `opened` has
/// been told that it is there. Errors: `NOT_FOUND`, `NOT_REGULAR`, `SYMLINK`, `DENIED`, `LIMIT`, `INTERRUPTED` (a file
/// became shorter), `CANCELLED`.
pub fn pack(
    root: &Root,
    path: &[u8],
    opened: impl FnOnce(Opened) -> Result<(), Fault>,
    out: &mut impl Write,
) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(path)?;
    let fault = |errno| path.fault(errno, "archive");
    let start = root.open(&path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(fault)?;
    let stat = fstat(&start).map_err(fault)?;
    let mut packer = Packer { builder: Builder::new(out), summary: FileSummary::default() };
    let told = Opened { mode: stat.st_mode & 0o7777, ..Opened::default() };
    match (FileType::from_raw_mode(stat.st_mode), path.split()) {
        (FileType::Directory, _) => {
            opened(told)?;
            packer.directory(&start, &path, &mut Vec::new(), 0)?;
        }
        (FileType::RegularFile, Some((_, name))) => {
            opened(told)?;
            packer.file(start, &stat, name, &path)?;
        }
        _ => return Err(fault(Errno::NXIO)),
    }
    packer.builder.finish().map_err(|_| nobody_reads())?;
    Ok(packer.summary)
}

struct Packer<'a, W: Write> {
    builder: Builder<&'a mut W>,
    summary: FileSummary,
}

impl<W: Write> Packer<'_, W> {
    /// Adds what is in `directory`; `prefix` is its name in the archive.
    fn directory(
        &mut self,
        directory: &OwnedFd,
        path: &CheckedPath,
        prefix: &mut Vec<u8>,
        depth: usize,
    ) -> Result<(), Fault> {
        let shown = |name: &[u8]| [path.absolute().as_slice(), b"/", name].concat();
        let fault = |errno, name: &[u8]| errno::fault(errno, "archive", &shown(name));
        let mut names = names(directory.as_fd(), LIST_ENTRIES_MAX + 1).map_err(|errno| fault(errno, prefix))?;
        if depth > ARCHIVE_DEPTH_MAX || names.len() > LIST_ENTRIES_MAX {
            return Err(Fault::new(
                ErrorCode::Limit,
                format!("archive {}: too deep or too many names", shown(prefix).escape_ascii()),
            ));
        }
        names.sort();
        let own = prefix.len();
        for name in &names {
            prefix.truncate(own);
            prefix.extend_from_slice(name);
            let stat = match statat(directory, name.as_slice(), AtFlags::SYMLINK_NOFOLLOW) {
                // It went away meanwhile.
                Err(Errno::NOENT) => continue,
                result => result.map_err(|errno| fault(errno, prefix))?,
            };
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let open =
                || openat(directory, name.as_slice(), flags, Mode::empty()).map_err(|errno| fault(errno, prefix));
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => {
                    let file = open()?;
                    // Once more, of what was opened: the name may have been given to something else.
                    let stat = fstat(&file).map_err(|errno| fault(errno, prefix))?;
                    if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                        let name = prefix.clone();
                        self.file(file, &stat, &name, path)?;
                    }
                }
                FileType::Symlink => {
                    let target =
                        readlinkat(directory, name.as_slice(), Vec::new()).map_err(|errno| fault(errno, prefix))?;
                    let header = header(&stat, EntryType::Symlink, 0);
                    self.count()?;
                    self.link(header, prefix, target.as_bytes())?;
                }
                FileType::Directory => {
                    let inner = open()?;
                    prefix.push(b'/');
                    self.count()?;
                    self.add(header(&stat, EntryType::Directory, 0), prefix, io::empty())?;
                    self.directory(&inner, path, prefix, depth + 1)?;
                }
                _ => {}
            }
        }
        prefix.truncate(own);
        Ok(())
    }

    fn file(&mut self, file: OwnedFd, stat: &Stat, name: &[u8], path: &CheckedPath) -> Result<(), Fault> {
        let size = stat.st_size as u64;
        self.count()?;
        let mut exact = Exact { file: file.into(), left: size, failed: None };
        let added = self.add(header(stat, EntryType::Regular, size), name, &mut exact);
        match exact.failed {
            Some(Errno::CANCELED) => {
                let message = format!("archive {}: a file became shorter meanwhile", path.absolute().escape_ascii());
                return Err(Fault::new(ErrorCode::Interrupted, message));
            }
            Some(errno) => return Err(path.fault(errno, "archive")),
            None => added?,
        }
        self.summary.size += size;
        Ok(())
    }

    fn count(&mut self) -> Result<(), Fault> {
        self.summary.entries += 1;
        if self.summary.entries > ARCHIVE_ENTRIES_MAX {
            return Err(Fault::new(ErrorCode::Limit, format!("an archive of more than {ARCHIVE_ENTRIES_MAX} names")));
        }
        Ok(())
    }

    fn add(&mut self, mut header: Header, name: &[u8], content: impl Read) -> Result<(), Fault> {
        self.builder.append_data(&mut header, path_of(name), content).map_err(|_| nobody_reads())
    }

    fn link(&mut self, mut header: Header, name: &[u8], target: &[u8]) -> Result<(), Fault> {
        self.builder.append_link(&mut header, path_of(name), path_of(target)).map_err(|_| nobody_reads())
    }
}

fn path_of(bytes: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(bytes))
}

fn header(stat: &Stat, kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or(0));
    header
}

/// Exactly as many bytes as the header says.
struct Exact {
    file: File,
    left: u64,
    /// `CANCELED`: the file ended too early.
    failed: Option<Errno>,
}

impl Read for Exact {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wanted = self.left.min(buffer.len() as u64) as usize;
        match self.file.read(&mut buffer[..wanted]) {
            Ok(0) if wanted > 0 => {
                self.failed = Some(Errno::CANCELED);
                Err(io::ErrorKind::UnexpectedEof.into())
            }
            Ok(count) => {
                self.left -= count as u64;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Err(error),
            Err(error) => {
                self.failed = Some(errno::of(&error));
                Err(error)
            }
        }
    }
}
