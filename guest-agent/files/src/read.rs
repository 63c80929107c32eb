//! Reading one regular file, whole or a part of it.

use crate::root::{CheckedPath, Root};
use crate::{errno, look};
use rustix::fs::{FileType, OFlags, Stat, fstat};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use wire::file_request::{FileSummary, Opened, ReadRangeRequest};
use wire::request::ReadFileRequest;
use wire::{ErrorCode, Fault};

const BUFFER_SIZE: usize = 256 << 10;

/// A regular file, open and not yet sent.
#[derive(Debug)]
pub struct OpenedFile {
    file: File,
    path: CheckedPath,
    max: u64,
    /// Bytes it had when it was opened.
    pub size: u64,
    /// Permission and set-id bits.
    pub mode: u32,
}

/// Opens the regular file of `request`. Errors: `NOT_FOUND`, `NOT_REGULAR`, `NOT_DIRECTORY`, `SYMLINK`, `DENIED`,
/// `TOO_LARGE`, `BAD_ARGUMENT`.
pub fn open_file(root: &Root, request: &ReadFileRequest) -> Result<OpenedFile, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let (file, stat) = open_regular(root, &path)?;
    let size = stat.st_size as u64;
    let opened = OpenedFile { file, path, max: request.max, size, mode: stat.st_mode & 0o7777 };
    if size > request.max { Err(opened.too_large()) } else { Ok(opened) }
}

fn open_regular(root: &Root, path: &CheckedPath) -> Result<(File, Stat), Fault> {
    // Without O_NONBLOCK a FIFO would hold the caller; without a second look a device would be read.
    let descriptor = root.open(path, OFlags::RDONLY | OFlags::NONBLOCK).map_err(|errno| path.fault(errno, "read"))?;
    let stat = fstat(&descriptor).map_err(|errno| path.fault(errno, "read"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        let message = format!("read {}: not a regular file", path.absolute().escape_ascii());
        return Err(Fault::new(ErrorCode::NotRegular, message));
    }
    Ok((descriptor.into(), stat))
}

/// Sends a part of a file, after `opened` has been told what will come. A part beyond the end is empty. Errors as of
/// [`open_file`], `INTERRUPTED` when the file became shorter meanwhile, `CANCELLED` when nobody reads `out` any more.
pub fn read_range(
    root: &Root,
    request: &ReadRangeRequest,
    opened: impl FnOnce(Opened) -> Result<(), Fault>,
    out: &mut impl Write,
) -> Result<FileSummary, Fault> {
    let path = CheckedPath::new(&request.path)?;
    let (file, stat) = open_regular(root, &path)?;
    let size = stat.st_size as u64;
    let offset = if request.from_end { size.saturating_sub(request.offset) } else { request.offset.min(size) };
    let length = request.length.unwrap_or(u64::MAX).min(size - offset);
    let (mode, modified_ms) = (stat.st_mode & 0o7777, look::modified_ms(&stat));
    opened(Opened { size, offset, length, mode, modified_ms })?;
    let mut buffer = vec![0; BUFFER_SIZE];
    let mut sent = 0;
    while sent < length {
        let wanted = (length - sent).min(BUFFER_SIZE as u64) as usize;
        let count = match file.read_at(&mut buffer[..wanted], offset + sent) {
            Ok(0) => {
                let message = format!("read {}: it became shorter meanwhile", path.absolute().escape_ascii());
                return Err(Fault::new(ErrorCode::Interrupted, message));
            }
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(path.fault(errno::of(&error), "read")),
        };
        out.write_all(&buffer[..count]).map_err(|_| nobody_reads())?;
        sent += count as u64;
    }
    Ok(FileSummary { size: sent, entries: 1 })
}

pub(crate) fn nobody_reads() -> Fault {
    Fault::new(ErrorCode::Cancelled, "nobody reads the content")
}

impl OpenedFile {
    /// Sends the content and says how many bytes it was. Error `TOO_LARGE` when the file outgrew the limit
    /// meanwhile, `CANCELLED` when nobody reads `out` any more.
    pub fn send(mut self, out: &mut impl Write) -> Result<u64, Fault> {
        let mut buffer = vec![0; BUFFER_SIZE];
        let mut sent = 0;
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(0) => return Ok(sent),
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.path.fault(errno::of(&error), "read")),
            };
            sent += count as u64;
            if sent > self.max {
                return Err(self.too_large());
            }
            out.write_all(&buffer[..count]).map_err(|_| nobody_reads())?;
        }
    }

    fn too_large(&self) -> Fault {
        let path = self.path.absolute();
        Fault::new(ErrorCode::TooLarge, format!("read {}: more than {} bytes", path.escape_ascii(), self.max))
    }
}
