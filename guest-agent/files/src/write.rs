//! Writing one file: so that a reader sees either the old content or the new, or in place from where it ends.

use crate::beside::Beside;
use crate::errno;
use crate::parents::open_directory;
use crate::root::{CheckedPath, Root};
use rustix::fs::{
    AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, SeekFrom, Uid, fchmod, fchown, flock, fstat, ftruncate,
    openat, seek, statat,
};
use rustix::io::Errno;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use wire::file_request::{FileSummary, WriteAtRequest, WriteStreamRequest};
use wire::request::WriteFileRequest;
use wire::{ErrorCode, Fault};

const BUFFER_SIZE: usize = 256 << 10;
const MODE_DEFAULT: u32 = 0o644;

/// Writes `content` to the path of `request` and says how many bytes it was. The file gets the mode asked for
/// and, where the caller may, the owner of the file it replaces. Errors: `NOT_FOUND` (a parent, without
/// `parents`), `NOT_REGULAR` (something other than a file has the name), `NOT_DIRECTORY`, `SYMLINK`, `DENIED`,
/// `TOO_LARGE`, `NO_SPACE`, `CANCELLED` (the content was cut off), `BAD_ARGUMENT`.
pub fn write_file(root: &Root, request: &WriteFileRequest, content: &mut impl Read) -> Result<u64, Fault> {
    let path = CheckedPath::new(&request.path)?;
    replace(root, &path, request.parents, Some(request.mode), request.max, content)
}

/// Writes a file whole, or in place from an offset; errors as of [`write_file`], `OFFSET_MISMATCH` when the file has
/// another size than the offset, and `BUSY` while another writes it in place.
pub fn write_stream(root: &Root, request: &WriteStreamRequest, content: &mut impl Read) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let size = match request.offset {
        None => replace(root, &path, request.parents, request.mode, u64::MAX, content)?,
        Some(offset) => write_in_place(root, &path, request, offset, content)?,
    };
    Ok(FileSummary { size, entries: 1 })
}

/// Without `mode` the file keeps the one it has.
fn replace(
    root: &Root,
    path: &CheckedPath,
    parents: bool,
    mode: Option<u32>,
    max: u64,
    content: &mut impl Read,
) -> Result<u64, Fault> {
    let not_regular =
        |what| Fault::new(ErrorCode::NotRegular, format!("write {}: {what}", path.absolute().escape_ascii()));
    let (parent, name) = path.split().ok_or_else(|| not_regular("a directory"))?;
    let directory = open_directory(root, &parent, parents)?;
    let (mut owner, mut mode_before) = (None, MODE_DEFAULT);
    match statat(&directory, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => {
                owner = Some((Uid::from_raw(stat.st_uid), Gid::from_raw(stat.st_gid)));
                mode_before = stat.st_mode;
            }
            FileType::Symlink if root.refuses_links() => return Err(path.fault(Errno::LOOP, "write")),
            FileType::Symlink => {}
            FileType::Directory => return Err(not_regular("a directory")),
            _ => return Err(not_regular("a special file")),
        },
        Err(Errno::NOENT) => {}
        Err(errno) => return Err(path.fault(errno, "write")),
    }
    let beside = Beside::create(&directory).map_err(|errno| path.fault(errno, "write"))?;
    let size = copy(content, &beside.file, max, path)?;
    if let Some((uid, gid)) = owner {
        // A caller without the right to give files away keeps its own ownership, as when it makes a new file.
        let _ = fchown(&beside.file, Some(uid), Some(gid));
    }
    let mode = mode.unwrap_or(mode_before) & 0o777;
    fchmod(&beside.file, Mode::from_raw_mode(mode)).map_err(|errno| path.fault(errno, "write"))?;
    beside.rename(name).map_err(|errno| path.fault(errno, "write"))?;
    Ok(size)
}

/// What was written stays when the content is cut off, so that the host can go on from there.
fn write_in_place(
    root: &Root,
    path: &CheckedPath,
    request: &WriteStreamRequest,
    offset: u64,
    content: &mut impl Read,
) -> Result<u64, Fault> {
    let at = |errno| path.fault(errno, "write");
    let (parent, name) = path.split().ok_or_else(|| at(Errno::ISDIR))?;
    let directory = open_directory(root, &parent, request.parents)?;
    // Without O_NONBLOCK a FIFO would hold the caller.
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = if offset == 0 { flags | OFlags::CREATE } else { flags };
    let mode = Mode::from_raw_mode(MODE_DEFAULT);
    let file: File = openat(&directory, name, flags, mode).map_err(at)?.into();
    if FileType::from_raw_mode(fstat(&file).map_err(at)?.st_mode) != FileType::RegularFile {
        return Err(at(Errno::NXIO));
    }
    // What came before a cut may be on its way still, and beside it nobody else's bytes would lie where they belong.
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|errno| match errno {
        Errno::WOULDBLOCK => {
            Fault::new(ErrorCode::Busy, format!("write {}: it is being written", path.absolute().escape_ascii()))
        }
        errno => at(errno),
    })?;
    let stat = fstat(&file).map_err(at)?;
    if offset == 0 {
        ftruncate(&file, 0).map_err(at)?;
    } else if stat.st_size as u64 != offset {
        let message = format!("write {}: it has {} bytes", path.absolute().escape_ascii(), stat.st_size);
        return Err(Fault::new(ErrorCode::OffsetMismatch, message));
    }
    if let Some(mode) = request.mode {
        fchmod(&file, Mode::from_raw_mode(mode & 0o777)).map_err(at)?;
    }
    seek(&file, SeekFrom::Start(offset)).map_err(at)?;
    let written = copy(content, &file, u64::MAX, path)?;
    Ok(offset + written)
}

/// Writes into the regular file of `request`, which stays as large as it is where nothing goes beyond its end. What was
/// written stays when the content is cut off. Says how large the file is then. Errors as of [`write_file`].
pub fn write_at(root: &Root, request: &WriteAtRequest, content: &mut impl Read) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let at = |errno| path.fault(errno, "write");
    let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let flags = if request.offset.is_none() { flags | OFlags::APPEND } else { flags };
    let file: File = root.open(&path, flags).map_err(at)?.into();
    if FileType::from_raw_mode(fstat(&file).map_err(at)?.st_mode) != FileType::RegularFile {
        return Err(at(Errno::NXIO));
    }
    if let Some(offset) = request.offset {
        seek(&file, SeekFrom::Start(offset)).map_err(at)?;
    }
    copy(content, &file, u64::MAX, &path)?;
    Ok(FileSummary { size: fstat(&file).map_err(at)?.st_size as u64, entries: 1 })
}

pub(crate) fn copy(content: &mut impl Read, mut file: &File, max: u64, path: &CheckedPath) -> Result<u64, Fault> {
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
