//! Writing one file so that a reader sees either the old content or the new.

use crate::beside::Beside;
use crate::errno;
use crate::root::{CheckedPath, Root};
use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Uid, fchmod, fchown, mkdirat, openat, statat};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use wire::request::WriteFileRequest;
use wire::{ErrorCode, Fault};

const BUFFER_SIZE: usize = 256 << 10;
const PARENT_MODE: u32 = 0o755;

/// Writes `content` to the path of `request` and says how many bytes it was. The file gets the mode asked for
/// and, where the caller may, the owner of the file it replaces. Errors: `NOT_FOUND` (a parent, without
/// `parents`), `NOT_REGULAR` (something other than a file has the name), `NOT_DIRECTORY`, `SYMLINK`, `DENIED`,
/// `TOO_LARGE`, `NO_SPACE`, `CANCELLED` (the content was cut off), `BAD_ARGUMENT`.
pub fn write_file(root: &Root, request: &WriteFileRequest, content: &mut impl Read) -> Result<u64, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let not_regular =
        |what| Fault::new(ErrorCode::NotRegular, format!("write {}: {what}", path.absolute().escape_ascii()));
    let (parent, name) = path.split().ok_or_else(|| not_regular("a directory"))?;
    let directory = open_parent(root, &parent, request.parents)?;
    let mut owner = None;
    match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => owner = Some((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid))),
            FileType::Symlink if root.refuses_links() => return Err(path.fault(Errno::LOOP, "write")),
            FileType::Symlink => {}
            FileType::Directory => return Err(not_regular("a directory")),
            _ => return Err(not_regular("a special file")),
        },
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(path.fault(errno, "write")),
    }
    let beside = Beside::create(&directory).map_err(|errno| path.fault(errno, "write"))?;
    let size = copy(content, &beside.file, request.max, &path)?;
    if let Some((uid, gid)) = owner {
        // A caller without the right to give files away keeps its own ownership, as when it makes a new file.
        let _ = fchown(&beside.file, Some(uid), Some(gid));
    }
    fchmod(&beside.file, Mode::from_raw_mode(request.mode & 0o777)).map_err(|errno| path.fault(errno, "write"))?;
    beside.rename(name).map_err(|errno| path.fault(errno, "write"))?;
    Ok(size)
}

fn copy(content: &mut impl Read, mut file: &File, max: u64, path: &CheckedPath) -> Result<u64, Fault> {
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut size = 0;
    loop {
        let count = match content.read(&mut buffer) {
            Ok(0) => return Ok(size),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Err(Fault::new(ErrorCode::Cancelled, "the content was cut off")),
        };
        size += count as u64;
        if size > max {
            let path = path.absolute();
            return Err(Fault::new(
                ErrorCode::TooLarge,
                format!("write {}: more than {max} bytes", path.escape_ascii()),
            ));
        }
        file.write_all(&buffer[..count]).map_err(|error| path.fault(errno::of(&error), "write"))?;
    }
}

/// Opens the directory `path`, making what is missing one component at a time when `make` says so.
fn open_parent(root: &Root, path: &CheckedPath, make: bool) -> Result<OwnedFd, Fault> {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    match root.open(path, flags) {
        Err(Errno::NOENT) if make => {}
        result => return result.map_err(|errno| path.fault(errno, "open")),
    }
    let Some((above, name)) = path.split() else { return Err(path.fault(Errno::NOENT, "open")) };
    let directory = open_parent(root, &above, true)?;
    match mkdirat(&directory, name, Mode::from_raw_mode(PARENT_MODE)) {
        Ok(()) => {
            // The caller's umask may have taken bits away.
            let made = openat(&directory, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
            let _ = made.and_then(|made| fchmod(made, Mode::from_raw_mode(PARENT_MODE)));
        }
        Err(Errno::EXIST) => {}
        Err(errno) => return Err(path.fault(errno, "make")),
    }
    root.open(path, flags).map_err(|errno| path.fault(errno, "open"))
}
